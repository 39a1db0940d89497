"""Climbs the ladder: the first rung that applies, has tries left and is within budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foreshock.core.action import ActionCall, Plan
from foreshock.core.budget import Limits, refuse_plan, refuse_rollback
from foreshock.core.incident import PlanRecord
from foreshock.core.ladder import HALT, WATCH, Rung
from foreshock.core.planning import Defaults, Draft, draw_up, handover, objections
from foreshock.core.preferences import escalation, order_of
from foreshock.core.recurrence import measure, same_place
from foreshock.core.situation import Situation

_MAX_REASONS: Final = 6


@dataclass(frozen=True, kw_only=True)
class Climb:
    """What the next plan is chosen from; see `Policy` for each.

    Attributes:
        preferred: rungs that the likeliest cause asks for.
        pressed: whether nothing that leaves the state as it is will do.
    """

    ladder: Sequence[str]
    rungs: Mapping[str, Rung]
    preferred: Sequence[str]
    pressed: bool
    can_rollback: bool
    settle_steps: int
    limits: Limits
    defaults: Defaults

    def plan(self, now: Situation) -> Plan | None:
        """The plan of the first rung that may be tried; None while one is given its chance."""
        returned = same_place(now, self.settle_steps)
        before = [record for one in returned for record in one.plans]
        failed = [*before, *now.tried]
        draft = Draft(now=now, failed=failed, defaults=self.defaults)
        tried = [record.plan.rung for record in now.tried]
        barred = _up_to_last(order_of(self.preferred, self.ladder), {r.plan.rung for r in before})
        refusals: dict[str, None] = {}
        for name, most in escalation(self.preferred, self.ladder, self.rungs):
            one = self.rungs[name]
            if HALT in one.names:
                return _halt(name, now, list(refusals))
            if name == WATCH or name in barred or tried.count(name) > most:
                continue
            if not self._applies(one, now):
                continue
            if not now.must_act and (cooling := _cooling(name, one, now)):
                if cooling == "wait":
                    return None
                refusals[f"{name!r} was tried less than {one.cooldown_steps} steps ago"] = None
                continue
            plan, refusal = self._attempt(name, one, draft)
            if plan is not None:
                return plan
            if refusal:
                refusals[refusal] = None
        raise AssertionError("the ladder ends in a rung that halts")

    def _applies(self, one: Rung, now: Situation) -> bool:
        if "cap_lr" in one.names and now.diagnosis.lr_before_jump is None:
            return False
        if "skip_update" in one.names:
            first = not now.tried
            limited = now.only_gradients and now.gradient_limit is not None
            return first and limited and not self.pressed
        return one.goes_back or "pause" in one.names or not self.pressed

    def _attempt(self, name: str, one: Rung, draft: Draft) -> tuple[Plan | None, str]:
        """The plan of a rung, or why it may not be made."""
        now, target = draft.now, None
        if one.goes_back:
            if not self.can_rollback:
                return None, "this loop cannot go back: it owns its data loader"
            refusal = refuse_rollback(now, self.limits)
            if refusal:
                return None, refusal
            choice = draft.choose(one)
            if choice.target is None:
                before = f"no healthy snapshot from before step {now.onset_step}"
                return None, f"{before}: {objections(choice)}"
            target = choice.target
        plan = draw_up(name, one, draft, target)
        tried = {measure(record.plan.rung, record.plan.actions) for record in draft.failed}
        if measure(name, plan.actions) in tried:
            return None, f"{name!r} would repeat what has failed"
        refusal = refuse_plan(now, plan.actions, plan.target_step, self.limits)
        return (None, refusal) if refusal else (plan, "")


def _up_to_last(order: Sequence[str], used: set[str]) -> frozenset[str]:
    """The rungs of an order up to the last one that was used; those used in any case."""
    last = max((place for place, name in enumerate(order) if name in used), default=-1)
    return frozenset(used | set(order[: last + 1]))


def _cooling(name: str, one: Rung, now: Situation) -> str:
    """Whether a rung was planned too recently: "wait", "pass over" or nothing.

    Steps are counted from what a plan went back to, or where it was made. One that lies
    ahead, because time went back further since, was made no step ago.
    """
    if not one.cooldown_steps:
        return ""
    made = [record for incident in now.earlier for record in incident.plans] + list(now.tried)
    same = [record for record in made if record.plan.rung == name]
    if not same or now.step - _began(same[-1]) >= one.cooldown_steps:
        return ""
    return "wait" if now.tried and now.tried[-1] is same[-1] else "pass over"


def _began(record: PlanRecord) -> int:
    return record.step if record.plan.target_step is None else record.plan.target_step


def _halt(name: str, now: Situation, refusals: Sequence[str]) -> Plan:
    why = "; ".join(refusals[:_MAX_REASONS]) or "nothing else is left to try"
    call = ActionCall(name=HALT, arguments={"note": handover(now, why)})
    return Plan(rung=name, why=why, actions=(call,))
