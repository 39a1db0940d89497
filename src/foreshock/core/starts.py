"""What a run was started with, each time, and what was different from the time before."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from foreshock.core.case import Change, Intervention
from foreshock.core.reading import from_json_text

STARTED: Final = "process_started"
"""The kind of the record."""

KINDS: Final = ("configuration", "package", "environment", "code", "data", "world", "hardware")
_ABSENT: Final = "not there"
_BROUGHT_BACK: Final = "recovered"

Start = Mapping[str, Mapping[str, str]]
"""By kind and name, what a process was started with."""


@dataclass(frozen=True, kw_only=True)
class History:
    """What a run's records tell of it besides readings; fields as in `Case`.

    Attributes:
        starts: the last step before each start that counts: the first, and those with changes.
        changes: what was different from the start before.
        interventions: what was done and whether it helped.
        findings: what signals said is certainly wrong, by step.
    """

    starts: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    findings: tuple[tuple[int, str], ...] = ()


def changes_between(before: Start, after: Start, step: int) -> list[Change]:
    """What differs between two starts of a run, by kind and name.

    >>> old, new = {"package": {"torch": "2.12"}}, {"package": {"torch": "2.13"}}
    >>> [(one.name, one.before, one.after) for one in changes_between(old, new, 7)]
    [('torch', '2.12', '2.13')]
    """
    found: list[Change] = []
    for kind in KINDS:
        was, now = before.get(kind, {}), after.get(kind, {})
        for name in sorted({*was, *now}):
            old, new = was.get(name, _ABSENT), now.get(name, _ABSENT)
            if old != new:
                found.append(Change(step=step, kind=kind, name=name, before=old, after=new))
    return found


def history_of(records: Iterable[Mapping[str, Any]], up_to_step: int | None = None) -> History:
    """Fold a run's records, those of later steps left out.

    A process that went on exactly as the one before is no event: a run that was killed must
    decide as one that was not.
    """
    starts: list[int] = []
    changes: list[Change] = []
    last: Start | None = None
    findings: list[tuple[int, str]] = []
    plans: dict[int, list[tuple[int, str]]] = {}
    outcomes: dict[int, str] = {}
    for record in records:
        if up_to_step is not None and record["step"] > up_to_step:
            continue
        match record["kind"]:
            case "process_started":
                start = start_of_record(record)
                found = [] if last is None else changes_between(last, start, record["step"])
                if last is None or found:
                    starts.append(record["step"])
                changes += found
                last = start
            case "finding":
                findings.append((record["step"], str(record["what"])))
            case "plan":
                plan = (record["step"], str(record["plan"]["rung"]))
                plans.setdefault(record["incident"], []).append(plan)
            case "incident_closed":
                outcomes[record["incident"]] = record["outcome"]
            case _:
                pass
    return History(
        starts=tuple(starts),
        changes=tuple(changes),
        interventions=tuple(_interventions(plans, outcomes)),
        findings=tuple(findings),
    )


def start_of_record(record: Mapping[str, Any]) -> Start:
    """The start that a record tells of.

    Raises:
        ValueError: it is not one that a run writes.
    """
    found: dict[str, dict[str, str]] = {}
    for kind in KINDS:
        told = record.get(kind, {})
        if not isinstance(told, Mapping):
            raise ValueError(f"{kind} is {told!r:.80}, not an object")
        pairs = cast("Mapping[Any, Any]", told)
        found[kind] = {from_json_text(key): from_json_text(value) for key, value in pairs.items()}
    return found


def _interventions(
    plans: Mapping[int, list[tuple[int, str]]], outcomes: Mapping[int, str]
) -> list[Intervention]:
    """Every plan but an incident's last did not help; the last did if the incident recovered."""
    found: list[Intervention] = []
    for incident, made in plans.items():
        for place, (step, rung) in enumerate(made):
            helped: bool | None = False
            if place == len(made) - 1:
                outcome = outcomes.get(incident)
                helped = None if outcome is None else outcome == _BROUGHT_BACK
            found.append(Intervention(step=step, action=rung, helped=helped))
    return sorted(found, key=lambda one: one.step)
