"""Budgets: what a policy may spend on recovering, and which of them a plan would overdraw."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from foreshock.core.action import ActionCall
from foreshock.core.incident import PlanRecord
from foreshock.core.recurrence import windows
from foreshock.core.situation import Situation

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may be spent; see `Policy` for what each means. None is without limit."""

    rollbacks_per_incident: int
    rollbacks: int
    samples_set_aside: int | None
    share_set_aside: float
    lr_factor_floor: float
    steps_retrained: int | None


def refuse_rollback(now: Situation, limits: Limits) -> str:
    """Why no further rollback is allowed; empty if one is."""
    failed = sum(record.plan.target_step is not None for record in now.tried)
    if failed >= limits.rollbacks_per_incident:
        return (
            f"{failed} rollbacks did not cure this incident, and its budget is "
            f"{limits.rollbacks_per_incident} (max_rollbacks_per_incident)"
        )
    if now.num_rollbacks >= limits.rollbacks:
        return f"the budget of {limits.rollbacks} rollbacks is spent (max_rollbacks)"
    return ""


def refuse_plan(
    now: Situation, actions: Sequence[ActionCall], target_step: int | None, limits: Limits
) -> str:
    """Which budget a plan would overdraw, with the numbers; empty if none.

    All are of the whole run: every plan that was made counts, in closed incidents too.
    """
    made = [record for one in now.earlier for record in one.plans] + list(now.tried)
    for call in actions:
        if call.name == "quarantine":
            refusal = _refuse_window(now, made, call, limits)
        elif call.name == "scale_lr":
            refusal = _refuse_rate(made, call, limits)
        elif call.name == "rollback" and target_step is not None:
            refusal = _refuse_steps(now, made, target_step, limits)
        else:
            refusal = ""
        if refusal:
            return refusal
    return ""


def _refuse_window(
    now: Situation, made: Sequence[PlanRecord], call: ActionCall, limits: Limits
) -> str:
    window = (call.arguments["start"], call.arguments["stop"])
    total = num_covered([*windows(made), window])
    most = limits.samples_set_aside
    if most is not None and total > most:
        return f"{total} samples would be set aside, over {most} (max_samples_set_aside)"
    share = total / now.num_samples if now.num_samples else 0.0
    if share > limits.share_set_aside:
        return (
            f"{total} of the stream's {now.num_samples} samples would be set aside ({share:.1%}), "
            f"over {limits.share_set_aside:.1%} (max_share_set_aside)"
        )
    return ""


def _refuse_rate(made: Sequence[PlanRecord], call: ActionCall, limits: Limits) -> str:
    others = lr_factor(made, call.arguments["first_step"], _ends(call))
    factor = float(call.arguments["factor"]) * others
    if factor >= limits.lr_factor_floor * (1 - _ROUNDING):
        return ""
    return (
        f"the learning rate would be at {factor:.4g} of its schedule, below "
        f"{limits.lr_factor_floor:g} (min_lr_factor)"
    )


def _refuse_steps(
    now: Situation, made: Sequence[PlanRecord], target_step: int, limits: Limits
) -> str:
    most = limits.steps_retrained
    if most is None:
        return ""
    total = now.step - target_step
    for record in made:
        if record.plan.target_step is not None:
            total += max(0, record.step - record.plan.target_step)
    if total <= most:
        return ""
    return f"{total} steps would be trained again in all, over {most} (max_steps_retrained)"


def lr_factor(made: Iterable[PlanRecord], first_step: int, before_step: float = math.inf) -> float:
    """The lowest factor on the rate at a step of a range, by the plans made.

    One that is taken back over a ramp counts in full until it is gone.
    """
    calls = [call for record in made for call in record.plan.actions if call.name == "scale_lr"]
    starts = [max(first_step, int(call.arguments["first_step"])) for call in calls]
    lowest = 1.0
    for step in {first_step, *starts}:
        if step < before_step:
            holding = [one for one in calls if one.arguments["first_step"] <= step < _ends(one)]
            lowest = min(lowest, math.prod(float(one.arguments["factor"]) for one in holding))
    return lowest


def _ends(call: ActionCall) -> float:
    hold = call.arguments.get("hold_steps")
    if hold is None:
        return math.inf
    return call.arguments["first_step"] + hold + call.arguments.get("ramp_steps", 0)


def num_covered(spans: Iterable[tuple[int, int]]) -> int:
    """How many positions lie in at least one span `[start, stop)`.

    >>> num_covered([(0, 4), (2, 6), (9, 10)])
    7
    """
    covered, end = 0, -math.inf
    for start, stop in sorted(spans):
        begin = max(start, end)
        if stop > begin:
            covered += int(stop - begin)
            end = stop
    return covered
