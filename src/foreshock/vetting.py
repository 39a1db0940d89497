"""Vets the records of a run that is to be resumed, before anything is rebuilt from them.

A journal may come from someone else. Its checksums tell damage, not intent: here every field
that a resume acts on is checked for its type and its range, so that what follows may trust it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foreshock.core.cause import Diagnosis
from foreshock.core.detector import Alarm
from foreshock.core.errors import ForeshockError, JournalError
from foreshock.core.incident import IncidentBook
from foreshock.core.override import KINDS as OVERRIDES
from foreshock.core.reading import from_json_number, from_json_text, from_json_whole
from foreshock.data.entry import LedgerEntry
from foreshock.data.journalled import check_record

MAX_SET_ASIDE: Final = 1 << 24
"""Positions that windows may hold in all. Our choice: far above what a policy sets aside in a
run, and bounded memory when a forged record claims the whole of an endless stream."""

_DAMAGE = (AttributeError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError)


def vet(records: Sequence[Mapping[str, Any]], run_dir: Path) -> None:
    """Refuse records that no run writes.

    Raises:
        JournalError: one has a field missing, of the wrong type or out of its range.
    """
    book = IncidentBook()
    set_aside = 0
    for line, record in enumerate(records, start=1):
        try:
            kind = from_json_text(record["kind"])
            _whole(record["attempt"])
            _whole(record["step"])
            _CHECKS.get(kind, _nothing)(record)
            book.apply(record)
            set_aside += _window_size(kind, record)
            if set_aside > MAX_SET_ASIDE:
                raise ValueError(f"over {MAX_SET_ASIDE} positions are set aside in all")
        except (ForeshockError, *_DAMAGE) as error:
            raise JournalError(
                f"{run_dir}/decisions.jsonl, line {line} ({record.get('kind')!s:.40}) is not "
                f"what a run writes ({type(error).__name__}: {error!s:.200}): restore the file "
                "from a copy, or use a new run directory."
            ) from error


def _whole(value: object) -> int:
    found = from_json_whole(value)
    if found < 0:
        raise ValueError(f"{found} is below 0")
    return found


def _real(value: object) -> float:
    found = from_json_number(value)
    if isinstance(value, str):
        raise ValueError(f"expected a finite number, got {value!r:.80}")
    return found


def _nothing(record: Mapping[str, Any]) -> None:
    pass


def _gate(fields: Mapping[str, Any]) -> None:
    _whole(fields["first_step"])
    _whole(fields["last_step"])
    _real(fields["limit"])


def _rate(fields: Mapping[str, Any]) -> None:
    _whole(fields["first_step"])
    if not 0 < _real(fields["factor"]) <= 1:
        raise ValueError(f"the learning rate's factor is {fields['factor']}, not in (0, 1]")


def _window(fields: Mapping[str, Any]) -> None:
    size = _whole(fields["stop"]) - _whole(fields["start"])
    if size > MAX_SET_ASIDE:
        raise ValueError(f"a window of {size} positions, over {MAX_SET_ASIDE}")
    from_json_text(fields["reason"])


def _target(fields: Mapping[str, Any]) -> None:
    from_json_text(fields["snapshot_id"])
    _whole(fields["step"])


def _note(fields: Mapping[str, Any]) -> None:
    from_json_text(fields["note"])


_ARGUMENTS: Final[dict[str, Callable[[Mapping[str, Any]], None]]] = {
    "halt": _note,
    "quarantine": _window,
    "rollback": _target,
    "scale_lr": _rate,
    "skip_update": _gate,
}


def _plan(record: Mapping[str, Any]) -> None:
    for name in ("incident", "plan_id", "position", "last_alarm_step"):
        _whole(record[name])
    if record["plan"]["target_step"] is not None:
        _whole(record["plan"]["target_step"])
    for action in record["plan"]["actions"]:
        _ARGUMENTS.get(from_json_text(action["name"]), _nothing)(action["arguments"])
    diagnosis = Diagnosis.from_json(record["diagnosis"])
    from_json_text(diagnosis.top.cause)
    for candidate in diagnosis.candidates:
        _real(candidate.probability)
    for alarm in record["alarms"]:
        _whole(Alarm.from_json(alarm).step)


def _closed(record: Mapping[str, Any]) -> None:
    _whole(record["judged_step"])


def _due(record: Mapping[str, Any]) -> None:
    _whole(record["at_step"])


def _measured(record: Mapping[str, Any]) -> None:
    from_json_text(record["snapshot"])
    for values in (record["values"], *record["neighbours"]):
        _measurement(values)


def _measurement(values: Mapping[str, Any]) -> None:
    for name, items in values.items():
        from_json_text(name)
        for item in items:
            from_json_number(item)


def _done(record: Mapping[str, Any]) -> None:
    from_json_text(record["result"])


def _aside(record: Mapping[str, Any]) -> None:
    entry = LedgerEntry.from_json(record["entry"])
    for text in (entry.entry_id, entry.reason):
        from_json_text(text)
    for index in [index for _, index in entry.ids] + list(entry.window or ()):
        _whole(index)


def _snapshot(record: Mapping[str, Any]) -> None:
    from_json_text(record["snapshot"]["id"])


def _chosen(record: Mapping[str, Any]) -> None:
    from_json_text(record["snapshot"])
    _whole(record["target_step"])


def _passed_over(record: Mapping[str, Any]) -> None:
    if record.get("bad") is True:
        from_json_text(record["snapshot"])


def _dropped(record: Mapping[str, Any]) -> None:
    for one in record["dropped"]:
        from_json_text(one["snapshot"])


def _override(record: Mapping[str, Any]) -> None:
    from_json_text(record["key"])
    OVERRIDES[record["kind"]].from_json(record)


_CHECKS: Final[dict[str, Callable[[Mapping[str, Any]], None]]] = {
    **dict.fromkeys(OVERRIDES, _override),
    **dict.fromkeys(("released", "reflow_started", "reflowed", "data_reordered"), check_record),
    "action_done": _done,
    "gate_limited": _gate,
    "halted": _note,
    "incident_closed": _closed,
    "measure_due": _due,
    "measured_before": _measured,
    "plan": _plan,
    "quarantined": _aside,
    "snapshot": _snapshot,
    "snapshot_chosen": _chosen,
    "snapshot_passed_over": _passed_over,
    "snapshots_dropped": _dropped,
    "rejected": _aside,
}


def _window_size(kind: str, record: Mapping[str, Any]) -> int:
    if kind not in ("quarantined", "rejected") or record["entry"]["window"] is None:
        return 0
    start, stop = record["entry"]["window"]
    return int(stop) - int(start)
