"""Vets the records of a run that is to be resumed, before anything is rebuilt from them.

A journal may come from someone else. Its checksums tell damage, not intent: here every field
that a resume acts on is checked for its type and its range, so that what follows may trust it.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from foreshock.catalog import make, members
from foreshock.core.cause import Diagnosis
from foreshock.core.detector import Alarm
from foreshock.core.errors import ForeshockError, JournalError
from foreshock.core.incident import IncidentBook
from foreshock.core.override import KINDS as OVERRIDES
from foreshock.core.reading import from_json_number, from_json_text, from_json_whole
from foreshock.core.settings import read_settings
from foreshock.core.starts import STARTED, start_of_record
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


def _window(window: Sequence[Any] | None) -> None:
    """Raw positions `[start, stop)`, or none."""
    if window is None:
        return
    start, stop = map(_whole, _listed(window))
    if start > stop:
        raise ValueError(f"a window from {start} to {stop}")


def _flag(value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, got {value!r:.80}")


def _listed(value: object) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, got {value!r:.80}")
    return cast("Sequence[Any]", value)


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object, got {value!r:.80}")
    return cast("Mapping[str, Any]", value)


def _note(fields: Mapping[str, Any]) -> None:
    from_json_text(fields["note"])


def _started(fields: Mapping[str, Any]) -> None:
    start_of_record(fields)


def _found(fields: Mapping[str, Any]) -> None:
    from_json_text(fields["what"])


def _call(action: Mapping[str, Any]) -> None:
    """An action as it is ordered; one that is not installed here is refused where it is due."""
    name, kinds = from_json_text(action["name"]), members("actions")
    given = _mapping(action["arguments"])
    if name not in kinds:
        return
    optional = {one.name for one in dataclasses.fields(kinds[name]) if one.default is None}
    told = {key: one for key, one in given.items() if one is not None or key not in optional}
    made = make("actions", name, **read_settings(f"actions/{name}", kinds[name], told))
    for key in told:  # steps, positions and factors: no field of an action is below 0
        value = getattr(made, key)
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise ValueError(f"{name} with {key}={value}")
    if name == "quarantine" and given["stop"] - given["start"] > MAX_SET_ASIDE:
        raise ValueError(f"a window of over {MAX_SET_ASIDE} positions")


def _plan(record: Mapping[str, Any]) -> None:
    for name in ("incident", "plan_id", "position", "last_alarm_step"):
        _whole(record[name])
    _window(record.get("window"))
    plan = record["plan"]
    for name in ("rung", "why"):
        from_json_text(plan[name])
    if plan["target_step"] is not None:
        _whole(plan["target_step"])
    for action in _listed(plan["actions"]):
        _call(action)
    diagnosis = Diagnosis.from_json(record["diagnosis"])
    for step in (diagnosis.onset_step, diagnosis.alarm_step, diagnosis.loss_moved_step or 0):
        _whole(step)
    for candidate in diagnosis.candidates:
        from_json_text(candidate.cause)
        from_json_text(candidate.settled_by)
        _real(candidate.probability)
        _flag(candidate.data_may_be_at_fault)
    for one in _listed(record["alarms"]):
        alarm = Alarm.from_json(one)
        for text in (alarm.series, alarm.detector):
            from_json_text(text)
        for step in (alarm.step, alarm.onset_step):
            _whole(step)


def _verified(record: Mapping[str, Any]) -> None:
    found = _mapping(record["verification"])
    _flag(found["passed"])
    from_json_text(found["note"])
    from_json_text(found.get("against", ""))
    from_json_text(found.get("also_against", ""))
    for name in ("again", "reopens"):
        _flag(found.get(name, False))
    for probe in _listed(found["probes"]):
        from_json_text(probe["probe"])
        _flag(probe["passed"])
    if "position" in record:
        _whole(record["position"])


def _paused(record: Mapping[str, Any]) -> None:
    from_json_text(record["key"])
    _real(record["time"])


def _lifted(record: Mapping[str, Any]) -> None:
    from_json_text(record["key"])


def _closed(record: Mapping[str, Any]) -> None:
    _whole(record["judged_step"])


def _probed(record: Mapping[str, Any]) -> None:
    _flag(record["harmed"])


def _due(record: Mapping[str, Any]) -> None:
    _whole(record["at_step"])
    _whole(record["plan_id"])
    if record.get("trained_from") is not None:
        _whole(record["trained_from"])


def _measured(record: Mapping[str, Any]) -> None:
    from_json_text(record["snapshot"])
    _due(record)
    steps, near = _listed(record["neighbour_steps"]), _listed(record["neighbours"])
    if len(steps) != len(near):
        raise ValueError(f"{len(near)} neighbours at {len(steps)} steps")
    for step in steps:
        _whole(step)
    for values in (record["values"], *near):
        for name, items in _mapping(values).items():
            from_json_text(name)
            for item in _listed(items):
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
    for one in _listed(record["dropped"]):
        from_json_text(one["snapshot"])


def _override(record: Mapping[str, Any]) -> None:
    from_json_text(record["key"])
    OVERRIDES[record["kind"]].from_json(record)


_CHECKS: Final[dict[str, Callable[[Mapping[str, Any]], None]]] = {
    **dict.fromkeys(OVERRIDES, _override),
    **dict.fromkeys(("released", "reflow_started", "reflowed", "data_reordered"), check_record),
    "action_done": _done,
    "episode_probed": _probed,
    "finding": _found,
    "gate_limited": _gate,
    "halted": _note,
    "incident_closed": _closed,
    "measure_due": _due,
    "measured_before": _measured,
    "pause_lifted": _lifted,
    "paused": _paused,
    "plan": _plan,
    STARTED: _started,
    "quarantined": _aside,
    "snapshot": _snapshot,
    "snapshot_chosen": _chosen,
    "snapshot_passed_over": _passed_over,
    "snapshots_dropped": _dropped,
    "rejected": _aside,
    "verification": _verified,
}


def _window_size(kind: str, record: Mapping[str, Any]) -> int:
    if kind not in ("quarantined", "rejected") or record["entry"]["window"] is None:
        return 0
    start, stop = record["entry"]["window"]
    return int(stop) - int(start)
