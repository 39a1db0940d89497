"""Whether trouble has come back to where it was before, and what was tried there."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from foreshock.core.action import ActionCall
from foreshock.core.incident import Incident, Outcome, PlanRecord
from foreshock.core.situation import Situation

_INCIDENTAL: Final = frozenset(
    {"first_step", "last_step", "snapshot_id", "reason", "note", "seed", "why"}
)
"""Arguments that differ from try to try without making it another measure."""


def same_place(now: Situation, settle_steps: int) -> list[Incident]:
    """The earlier incidents that the present trouble is a return of.

    Its onset lies between what such an incident went back to and its last alarm, the steps
    in which a recovery settles added on both sides; or it comes out of data that the
    incident had set aside, and that was given back since. An incident that halted does not
    count: a person has resumed the run, and begins anew.

    What an incident was a return of when it opened it remains, wherever it has been since.
    """
    return [one for one in now.earlier if _returns(now, one, settle_steps)]


def _returns(now: Situation, before: Incident, settle_steps: int) -> bool:
    if before.outcome is not Outcome.RECOVERED or not before.plans:
        return False
    targets = [r.plan.target_step for r in before.plans if r.plan.target_step is not None]
    first = min([*targets, before.onset_step]) - settle_steps
    last = before.last_alarm_step + settle_steps
    opened = now.onset_step if now.incident is None else now.incident.onset_step
    if any(first <= onset <= last for onset in (opened, now.onset_step)):
        return True
    aside = windows(before.plans)
    seen = [now.window, *(record.window for record in now.tried)]
    return any(
        one is not None and one[0] < window[1] and window[0] < one[1]
        for one in seen
        for window in aside
    )


def windows(records: Iterable[PlanRecord]) -> list[tuple[int, int]]:
    """The raw positions `[start, stop)` that plans have set aside."""
    return [
        (call.arguments["start"], call.arguments["stop"])
        for record in records
        for call in record.plan.actions
        if call.name == "quarantine"
    ]


def measure(rung: str, actions: Sequence[ActionCall]) -> str:
    """What a plan tries, without what differs by chance: equal ones would repeat each other.

    >>> call = ActionCall(name="scale_lr", arguments={"factor": 0.5, "first_step": 7})
    >>> later = ActionCall(name="scale_lr", arguments={"factor": 0.5, "first_step": 9})
    >>> measure("lower_lr", [call]) == measure("lower_lr", [later])
    True
    """
    told: list[Any] = [rung]
    for call in actions:
        kept = {key: one for key, one in call.arguments.items() if key not in _INCIDENTAL}
        told.append([call.name, kept])
    return json.dumps(told, sort_keys=True)
