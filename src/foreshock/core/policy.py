"""Policy: a pure function from diagnosis, history and budget to a plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foreshock.core.action import ActionCall, Plan
from foreshock.core.cause import Diagnosis
from foreshock.core.errors import ConfigError
from foreshock.core.incident import Incident
from foreshock.core.snapshot import Choice, SnapshotRef, choose_target

_SAME_STATE_TRIES = 3
"""Rollbacks to one clean state, each with more data set aside, before the state is doubted."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What policy decides on.

    Attributes:
        step: last step that has been read.
        diagnosis: of the present episode.
        must_act: the loss was NaN or Inf in the forward, or a weight is.
        only_gradients: nothing but gradient signals has alarmed, so that the gate alone
            can keep the run whole.
        consecutive_skips: updates skipped in a row.
        handled_by_scaler: the only non-finite values are gradients, and a loss scaler
            deals with them.
        gradient_limit: the gradient norm beyond which its rule alarms, or None.
        incident: the open incident, or None.
        snapshots: of the run's lineage.
        position: watermark of the stream after that step.
        lag_steps: later steps that are under way already, out of a lowered gate's reach.
        num_rollbacks: in the whole run so far.
    """

    step: int
    diagnosis: Diagnosis
    must_act: bool
    only_gradients: bool
    consecutive_skips: int
    handled_by_scaler: bool
    gradient_limit: float | None
    incident: Incident | None
    snapshots: Sequence[SnapshotRef]
    position: int
    num_rollbacks: int
    lag_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Watch, skip, roll back and quarantine, further back with a lower rate, halt.

    Within an incident nothing that has failed is repeated: each rollback after the
    first either goes further back, sets more data aside, or lowers the rate.

    Args:
        confirm_steps: alarmed steps before an episode is more than an outlier. Fewer
            acts sooner and on more outliers.
        confirm_within_steps: alarmed steps count if they are among the last so many; rare
            outliers far apart confirm nothing.
        confirm_again_steps: the same while an incident is open.
        quiet_steps: steps without an alarm after which an episode is over.
        doubt_steps: steps after the first alarm of an episode that is not confirmed, after
            which the model is probed: an update that went wrong once may have done its
            harm while the training loss shows nothing.
        settle_steps: steps beyond the last alarmed one after which a recovery is
            verified.
        data_suspicion: probability of the data being at fault from which on its window
            is set aside.
        max_skips_in_a_row: skipped updates before skipping counts as failed.
        skip_hold_steps: how long a lowered gate holds.
        lookahead: data set aside ahead of the watermark when a recovery has met the
            same trouble again, as a multiple of what the incident has set aside so
            far: doubling reaches the end of a bad region of any length in a few tries
            and sets aside at most about as much again.
        lr_factor: factor on the rate where the rate is the likeliest cause, and from the
            fifth rollback of an incident on.
        max_rollbacks_per_incident: then halt.
        max_rollbacks: in the whole run; then halt.
        can_rollback: False for loops that cannot go back.
        watch_only: never act.

    Raises:
        ConfigError: a setting is not allowed.

    Reference: PaLM (restart about 100 steps before, skip 200 to 500 batches); OPT-175B
    (lower rate, tighter clip after a restart). Doubling look-ahead: our choice, because
    the length of a bad region is not known.
    """

    confirm_steps: int = 3
    confirm_within_steps: int = 10
    confirm_again_steps: int = 2
    quiet_steps: int = 20
    doubt_steps: int = 3
    settle_steps: int = 10
    data_suspicion: float = 0.2
    max_skips_in_a_row: int = 3
    skip_hold_steps: int = 50
    lookahead: float = 1.0
    lr_factor: float = 0.5
    max_rollbacks_per_incident: int = 8
    max_rollbacks: int = 50
    can_rollback: bool = True
    watch_only: bool = False

    def __post_init__(self) -> None:
        for name in (
            "confirm",
            "confirm_within",
            "confirm_again",
            "quiet",
            "doubt",
            "settle",
            "skip_hold",
        ):
            value = getattr(self, f"{name}_steps")
            if value < 1:
                raise ConfigError(f"Policy.{name}_steps is {value}; it must be at least 1 step")
        for name in ("max_skips_in_a_row", "max_rollbacks_per_incident", "max_rollbacks"):
            if getattr(self, name) < 0:
                raise ConfigError(f"Policy.{name} is {getattr(self, name)}; it must be 0 or more")
        if not 0 <= self.data_suspicion <= 1:
            raise ConfigError(
                f"Policy.data_suspicion is {self.data_suspicion}; it must be in [0, 1]"
            )
        if not 0 < self.lr_factor <= 1:
            raise ConfigError(f"Policy.lr_factor is {self.lr_factor}; it must be in (0, 1]")
        if not 0 <= self.lookahead < math.inf:
            raise ConfigError(
                f"Policy.lookahead is {self.lookahead}; it must be 0 or more, and finite"
            )

    @property
    def actions(self) -> frozenset[str]:
        """Names of the actions that this policy may order."""
        if self.watch_only:
            return frozenset()
        going_back = {"rollback", "quarantine", "scale_lr"} if self.can_rollback else set[str]()
        return frozenset({"skip_update", "halt"} | going_back)

    def due(
        self, num_alarmed_steps: int, *, still_alarmed: bool, in_incident: bool, skips: int
    ) -> bool:
        """Whether an episode is more than an outlier, so that it is worth a diagnosis."""
        needed = self.confirm_again_steps if in_incident else self.confirm_steps
        return skips > self.max_skips_in_a_row or (still_alarmed and num_alarmed_steps >= needed)

    def decide(self, situation: Situation) -> Plan | None:
        """Return the plan for a situation that is due or must be acted on; None to watch on."""
        if self.watch_only:
            return None
        if situation.must_act:
            return self._go_back(situation)
        if situation.handled_by_scaler:
            return None
        if situation.consecutive_skips > self.max_skips_in_a_row:
            return self._go_back(situation)
        if situation.diagnosis.top.cause == "benign" or _is_skipping(situation):
            return None
        if self._can_skip(situation):
            return self._skip(situation)
        return self._go_back(situation)

    def _can_skip(self, now: Situation) -> bool:
        tried = now.incident is not None and bool(now.incident.plans)
        return now.only_gradients and now.gradient_limit is not None and not tried

    def _skip(self, now: Situation) -> Plan:
        assert now.gradient_limit is not None
        first = now.step + now.lag_steps + 1
        last = first + self.skip_hold_steps - 1
        arguments: dict[str, Any] = {
            "limit": now.gradient_limit,
            "first_step": first,
            "last_step": last,
        }
        return Plan(
            rung="skip",
            why=f"only gradients are out of range: updates above {now.gradient_limit:.4g} are "
            f"skipped up to step {last}, so that none of them reaches the weights",
            actions=(ActionCall(name="skip_update", arguments=arguments),),
        )

    def _go_back(self, now: Situation) -> Plan:
        failed = now.incident.rollbacks if now.incident is not None else []
        if not self.can_rollback:
            return _halt(now, "this loop cannot go back: it owns its data loader")
        if len(failed) >= self.max_rollbacks_per_incident:
            return _halt(now, f"{len(failed)} rollbacks did not cure this incident")
        if now.num_rollbacks >= self.max_rollbacks:
            return _halt(now, f"the budget of {self.max_rollbacks} rollbacks is spent")
        tries = len(failed)
        suspect = now.diagnosis.data_suspicion >= self.data_suspicion or tries > 0
        onset = now.diagnosis.onset_step
        if now.incident is not None:
            onset = min(onset, now.incident.onset_step)
        # Where data is the suspect, the same clean state is tried again with more data set
        # aside; where it is not, the state itself is the suspect and must be older.
        suspect_data = suspect and now.diagnosis.top.data_may_be_at_fault
        older_by = max(0, tries - _SAME_STATE_TRIES) if suspect_data else tries
        choice = choose_target(now.snapshots, onset, older_by)
        if choice.target is None:
            return _halt(
                now, f"no healthy snapshot from before step {onset}: {_objections(choice)}"
            )
        return self._rollback(now, choice.target, tries, suspect)

    def _rollback(self, now: Situation, target: SnapshotRef, tries: int, suspect: bool) -> Plan:
        why = [f"back to step {target.step}, the newest healthy state before the onset"]
        if tries:
            why = [f"back to step {target.step}: {tries} rollback(s) of this incident have failed"]
        actions: list[ActionCall] = []
        if suspect:
            ahead = 0
            if tries and now.incident is not None:
                ahead = round(self.lookahead * _set_aside(now.incident))
            stop = now.position + ahead
            reason = f"{now.diagnosis.top.cause} suspected at step {now.diagnosis.onset_step}"
            arguments: dict[str, Any] = {
                "start": target.position,
                "stop": stop,
                "reason": reason,
            }
            actions.append(ActionCall(name="quarantine", arguments=arguments))
            text = f"positions {target.position} to {stop - 1} are set aside"
            why.append(text + (f" ({ahead} of them ahead of the run)" if ahead else ""))
        else:
            share = now.diagnosis.data_suspicion
            why.append(f"the data is not suspect ({share:.0%}) and will be trained again")
        slow = now.diagnosis.top.cause == "lr_too_high"
        if tries > _SAME_STATE_TRIES or slow:
            arguments = {"factor": self.lr_factor, "first_step": target.step + 1}
            actions.append(ActionCall(name="scale_lr", arguments=arguments))
            why.append(f"the learning rate is multiplied by {self.lr_factor}")
        arguments = {"snapshot_id": target.id, "step": target.step}
        actions.append(ActionCall(name="rollback", arguments=arguments))
        return Plan(
            rung="rollback",
            why="; ".join(why),
            actions=tuple(actions),
            target_step=target.step,
        )


def _is_skipping(now: Situation) -> bool:
    """Whether the incident's last plan was to skip, and its gate still holds.

    The alarms go on meanwhile, since a gradient is measured before the gate; too many
    skips in a row are what tells that skipping has failed.
    """
    if now.incident is None or not now.incident.plans or not now.only_gradients:
        return False
    plan = now.incident.plans[-1].plan
    return plan.rung == "skip" and now.step <= plan.actions[0].arguments["last_step"]


def _set_aside(incident: Incident) -> int:
    """Raw positions that the incident's plans have set aside."""
    windows = [
        call.arguments
        for record in incident.plans
        for call in record.plan.actions
        if call.name == "quarantine"
    ]
    if not windows:
        return 0
    return max(w["stop"] for w in windows) - min(w["start"] for w in windows)


def _objections(choice: Choice) -> str:
    if not choice.judged:
        return "there is no snapshot at all"
    return "; ".join(f"{judged.ref.id}: {judged.objection}" for judged in choice.judged[:5])


def _halt(now: Situation, why: str) -> Plan:
    tried = [record.plan.why for record in now.incident.plans] if now.incident is not None else []
    lines = [
        f"Halted at step {now.step}: {why}.",
        f"Likeliest cause: {now.diagnosis.top.cause} ({now.diagnosis.top.probability:.0%}); "
        f"{now.diagnosis.first_mover} moved first, at step {now.diagnosis.onset_step}.",
        f"What would settle it: {now.diagnosis.top.settled_by}.",
        "Tried in this incident: " + ("; then ".join(tried) if tried else "nothing") + ".",
    ]
    call = ActionCall(name="halt", arguments={"note": "\n".join(lines)})
    return Plan(rung="halt", why=why, actions=(call,))
