"""Makes a plan of a rung: what it goes back to, what it sets aside, which steps it holds for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foreshock.core.action import ActionCall, Plan
from foreshock.core.incident import PlanRecord
from foreshock.core.ladder import Order, Rung
from foreshock.core.recurrence import windows
from foreshock.core.situation import Situation
from foreshock.core.snapshot import Choice, SnapshotRef, choose_target

WORKED_OUT: Final[Mapping[str, frozenset[str]]] = {
    "cap_lr": frozenset({"max_lr", "first_step"}),
    "halt": frozenset({"note"}),
    "lower_beta2": frozenset({"first_step"}),
    "pause": frozenset({"reason"}),
    "perturb_order": frozenset({"position"}),
    "perturb_weights": frozenset({"first_step"}),
    "quarantine": frozenset({"start", "stop", "reason"}),
    "raise_epsilon": frozenset({"first_step"}),
    "reset_moments": frozenset({"first_step"}),
    "rollback": frozenset({"snapshot_id", "step"}),
    "scale_lr": frozenset({"first_step"}),
    "shrink_embedding_gradients": frozenset({"first_step"}),
    "skip_update": frozenset({"limit", "first_step", "last_step"}),
    "tighten_clip": frozenset({"first_step"}),
}
"""Arguments of actions that are worked out from the situation, and cannot be configured."""

SPANS: Final[Mapping[str, bool]] = {
    "cap_lr": True,
    "lower_beta2": False,
    "raise_epsilon": False,
    "scale_lr": True,
    "shrink_embedding_gradients": True,
    "tighten_clip": True,
}
"""Actions that hold from `first_step` on for `hold_steps`, and whether they have a ramp."""

OWN_SETTINGS: Final[Mapping[str, frozenset[str]]] = {
    "quarantine": frozenset({"lookahead"}),
    "skip_update": frozenset({"hold_steps"}),
}
"""Settings of an order that the action itself does not know."""


_TRIES_IF_CLEARED: Final = 3
"""Our choice: a diagnosis that has been wrong so often speaks for the data no more."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Settings that orders do not give themselves; see `Policy` for each."""

    skip_hold_steps: int
    lookahead: float
    lr_factor: float
    data_suspicion: float


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A plan in the making: what it starts from.

    Attributes:
        now: the situation.
        failed: plans that were tried in this place before, earlier incidents included.
        defaults: settings that orders do not give.
    """

    now: Situation
    failed: Sequence[PlanRecord]
    defaults: Defaults

    @property
    def failed_targets(self) -> list[int]:
        """Steps that failed plans went back to, in order."""
        steps = [record.plan.target_step for record in self.failed]
        return [step for step in steps if step is not None]

    @property
    def data_suspect(self) -> bool:
        """Whether what was consumed since is to be set aside: it is likely, or going back
        without doing so has failed; a few times, where another cause is likelier than not."""
        diagnosis = self.now.diagnosis
        if diagnosis.data_suspicion >= self.defaults.data_suspicion:
            return True
        cleared = diagnosis.top.probability > 0.5 and not diagnosis.top.data_may_be_at_fault
        return len(self.failed_targets) >= (_TRIES_IF_CLEARED if cleared else 1)

    def choose(self, rung: Rung) -> Choice:
        """What to go back to: the newest healthy state from before the onset, or an older one
        than has failed.

        Where the data is the suspect, the same clean state is tried again with more set
        aside; where it is not, the state itself is the suspect and must be older. Where
        nothing older is left, the oldest.
        """
        now, targets = self.now, self.failed_targets
        choice = choose_target(now.snapshots, now.onset_step)
        if not targets or choice.target is None:
            return choice
        least = targets[-1] if self._same_state(rung) else targets[-1] - 1
        older_by = 0
        while choice.target is not None and choice.target.step > least:
            older_by += 1
            next_one = choose_target(now.snapshots, now.onset_step, older_by)
            if next_one.target == choice.target:
                break
            choice = next_one
        return choice

    def first_suspect(self, rung: Rung, target: SnapshotRef) -> int:
        """Raw position from which on data is set aside: where the target stands.

        Or, where the same state is to be tried again and only an older one is left, where that
        one stood: what had trained before it is trained again.
        """
        backs = [record for record in self.failed if record.plan.target_step is not None]
        last = backs[-1] if backs else None
        step = None if last is None else last.plan.target_step
        if last is None or step is None or not self._same_state(rung):
            return target.position
        if not target.step < step < self.now.onset_step:
            return target.position
        return max([target.position, *(start for start, _ in windows([last]))])

    def _same_state(self, rung: Rung) -> bool:
        """Whether another try may go back to the state that has failed, with more set aside."""
        diagnosis = self.now.diagnosis
        top = diagnosis.top
        # Causes of the data are several, and share what one of them would have.
        data = top.data_may_be_at_fault or diagnosis.data_suspicion >= top.probability
        return self.data_suspect and data and not rung.further_back


def draw_up(name: str, rung: Rung, draft: Draft, target: SnapshotRef | None) -> Plan:
    """The plan of a rung that applies, with every argument worked out."""
    now = draft.now
    why: list[str] = []
    if target is not None:
        tries = len(draft.failed_targets)
        said = ", the newest healthy state before the onset"
        if target.health.doubts:
            said = f": {draft.choose(rung).why}"
        if tries:
            said = f": {tries} rollback(s) of this incident have failed"
            if len(now.tried) < len(draft.failed):
                said = f": {tries} rollback(s) to this place have not lasted"
        why.append(f"back to step {target.step}{said}")
    calls: list[ActionCall] = []
    for one in rung.actions:
        if one.action == "quarantine" and not draft.data_suspect:
            share = now.diagnosis.data_suspicion
            why.append(f"the data is not suspect ({share:.0%}) and will be trained again")
            continue
        arguments = _arguments(one, rung, draft, target)
        calls.append(ActionCall(name=one.action, arguments=arguments))
        if said := _in_words(one.action, arguments, draft, target):
            why.append(said)
    if target is not None:
        calls += still_holding(now.tried, target.step)
    return Plan(
        rung=name,
        why="; ".join(why) or f"the rung {name!r} is next",
        actions=tuple(calls),
        target_step=None if target is None else target.step,
    )


def _arguments(one: Order, rung: Rung, draft: Draft, target: SnapshotRef | None) -> dict[str, Any]:
    """Every argument of an action: as configured, and worked out."""
    now, given = draft.now, dict(one.settings)
    in_place = now.step + now.lag_steps + 1
    first = in_place if target is None else target.step + 1
    match one.action:
        case "skip_update":
            assert now.gradient_limit is not None
            hold = given.pop("hold_steps", draft.defaults.skip_hold_steps)
            last = in_place + hold - 1
            return {"limit": now.gradient_limit, "first_step": in_place, "last_step": last}
        case "quarantine":
            assert target is not None
            lookahead = given.pop("lookahead", draft.defaults.lookahead)
            ahead = round(lookahead * _set_aside(draft)) if draft.failed_targets else 0
            cause, onset = now.diagnosis.top.cause, now.diagnosis.onset_step
            said = "cause unknown" if cause == "unknown" else f"{cause} suspected"
            reason = f"{said} at step {onset}"
            start = draft.first_suspect(rung, target)
            return {"start": start, "stop": now.position + ahead, "reason": reason}
        case "rollback":
            assert target is not None
            return {"snapshot_id": target.id, "step": target.step}
        case "cap_lr":
            return {**given, "max_lr": now.diagnosis.lr_before_jump, "first_step": first}
        case "scale_lr":
            return {"factor": draft.defaults.lr_factor, **given, "first_step": first}
        case "pause":
            return {**given, "reason": handover(now, "a person is asked for", did="Paused")}
        case "perturb_order":
            return {**given, "position": now.position if target is None else target.position}
        case name:
            worked_out = WORKED_OUT.get(name, frozenset())
            return {**given, "first_step": first} if "first_step" in worked_out else given


def still_holding(tried: Sequence[PlanRecord], target_step: int) -> list[ActionCall]:
    """Orders that let what earlier plans of an incident ordered hold from a target on.

    An order holds from a step on, and going back further would train the steps before it as
    they were when they failed.

    Args:
        tried: plans of the incident, in order.
        target_step: what is gone back to now.
    """
    orders: list[tuple[ActionCall, int]] = []

    def missing(step: int) -> list[ActionCall]:
        return [_until(call, step + 1, first - 1) for call, first in orders if first > step + 1]

    for record in tried:
        own, back = list(record.plan.actions), record.plan.target_step
        if back is not None:
            for call in missing(back):
                if call in own:
                    own.remove(call)
            orders = [(call, min(first, back + 1)) for call, first in orders]
        orders += [(one, one.arguments["first_step"]) for one in own if one.name in SPANS]
    return missing(target_step)


def _until(call: ActionCall, first_step: int, last_step: int) -> ActionCall:
    arguments = {**call.arguments, "first_step": first_step}
    arguments["hold_steps"] = last_step - first_step + 1
    if SPANS[call.name]:
        arguments["ramp_steps"] = 0
    return ActionCall(name=call.name, arguments=arguments)


def _set_aside(draft: Draft) -> int:
    """Raw positions from the first to the last that were set aside in this place."""
    spans = windows(draft.failed)
    return max(stop for _, stop in spans) - min(start for start, _ in spans) if spans else 0


def _in_words(  # noqa: PLR0912 - one case an action
    action: str, arguments: Mapping[str, Any], draft: Draft, target: SnapshotRef | None
) -> str:
    """What an action of the plan means, for a person; empty where the plan says it already."""
    match action:
        case "skip_update":
            return (
                f"only gradients are out of range: updates above {arguments['limit']:.4g} are "
                f"skipped up to step {arguments['last_step']}, so that none of them reaches the "
                "weights"
            )
        case "quarantine":
            ahead = arguments["stop"] - draft.now.position
            text = f"positions {arguments['start']} to {arguments['stop'] - 1} are set aside"
            return text + (f" ({ahead} of them ahead of the run)" if ahead else "")
        case "cap_lr":
            most = f"{arguments['max_lr']:.4g}"
            return f"the learning rate is at most {most}, as before its jump" + _span(arguments)
        case "scale_lr":
            return f"the learning rate is multiplied by {arguments['factor']}" + _span(arguments)
        case "tighten_clip":
            return f"gradients are clipped to {arguments.get('max_norm', 'less')}" + _span(
                arguments
            )
        case "reset_moments":
            groups = ", ".join(arguments.get("groups", ())) or "all groups"
            return f"the optimizer's moments are reset ({groups})"
        case "raise_epsilon":
            return "the optimizer's epsilon is raised" + _span(arguments)
        case "lower_beta2":
            return f"beta2 is lowered to {arguments.get('value', 'less')}" + _span(arguments)
        case "shrink_embedding_gradients":
            text = f"gradients of embeddings are multiplied by {arguments.get('factor', 'less')}"
            return text + _span(arguments)
        case "perturb_order":
            return f"the data from position {arguments['position']} on comes in another order"
        case "perturb_weights":
            return "a little noise is added to the weights"
        case "pause":
            return "the run pauses for a person"
        case "rollback":
            return ""
        case _:
            return f"{action} is carried out"


def _span(arguments: Mapping[str, Any]) -> str:
    hold, ramp = arguments.get("hold_steps"), arguments.get("ramp_steps", 0)
    if hold is None:
        return ""
    return f" for {hold} steps" + (f" and back over {ramp}" if ramp else "")


def objections(choice: Choice) -> str:
    """Why no snapshot could be chosen."""
    if not choice.judged:
        return "there is no snapshot at all"
    return "; ".join(f"{judged.ref.id}: {judged.objection}" for judged in choice.judged[:5])


def handover(now: Situation, why: str, *, did: str = "Halted") -> str:
    """The note for a person: why, the likeliest cause, what would settle it, what was tried."""
    tried = [record.plan.why for record in now.tried]
    lines = [
        f"{did} at step {now.step}: {why}.",
        f"Likeliest cause: {now.diagnosis.top.cause} ({now.diagnosis.top.probability:.0%}); "
        f"{now.diagnosis.first_mover} moved first, at step {now.diagnosis.onset_step}.",
        f"What would settle it: {now.diagnosis.top.settled_by}.",
        "Tried in this incident: " + ("; then ".join(tried) if tried else "nothing") + ".",
    ]
    return "\n".join(lines)
