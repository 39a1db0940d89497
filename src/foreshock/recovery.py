"""Recovery: plans are carried out, recoveries verified, interrupted runs taken up again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshock.attempts import Attempts
from foreshock.catalog import make
from foreshock.control import Control
from foreshock.core.errors import ConfigError
from foreshock.core.incident import Incident, Outcome, PlanRecord
from foreshock.core.ladder import HALT, PAUSE
from foreshock.core.snapshot import choose_target
from foreshock.data.stream import NothingLeftError
from foreshock.supervision import Supervisor
from foreshock.verification import data_to_strengthen

Tell = Callable[[str, Mapping[str, Any]], None]

_AGAIN_FACTOR = 10
"""What is hurt but hidden shows late; ten times the way is our choice, as the issue asks."""


class Recovery:
    """Brings decisions and the run together, between two steps.

    A plan is in the journal before anything of it happens; after a crash the part that
    was not carried out is carried out on resume, and the rest is not repeated.

    Args:
        attempts: where the run stands.
        control: what carries out actions.
        supervisor: what decides, and keeps the incidents.
        tell: hears of everything that is done.
    """

    def __init__(
        self, attempts: Attempts, control: Control, supervisor: Supervisor, tell: Tell
    ) -> None:
        self._attempts = attempts
        self._control = control
        self._supervisor = supervisor
        self._tell = tell

    def carry_out_plan(self) -> bool:
        """Carry out the plan that is waiting, if any; True if there was one."""
        record = self._supervisor.book.unfinished_plan
        if record is None:
            return False
        for number in range(record.done, len(record.plan.actions)):
            self._act(record, number)
        if self._control.halt_note is not None and self._supervisor.book.open is not None:
            self._attempts.finish_writing()  # the end is the last that is recorded
            self._close(Outcome.HALTED)
        self._record("plan_done", plan_id=record.id)
        return True

    def verify_if_settled(self) -> bool:
        """Verify a recovery that is due for it; True if a new plan came.

        The open incident's once it has settled, and that of the last one once more later.
        """
        progress, book = self._attempts.progress, self._supervisor.book
        if not self._supervisor.is_quiet() or book.unfinished_plan is not None:
            return False
        if progress.step <= book.judged_step and self._supervisor.was_whole(progress.step):
            self._supervisor.monitor.answered(whole=True)  # before the run was resumed
        settled = self._supervisor.settled_step()
        if settled is None:
            again = again_step(self._supervisor.book.incidents)
            return again is not None and progress.step >= again and self._verify_again()
        if progress.step < settled:
            return False
        incident = self._supervisor.book.open
        assert incident is not None
        result, position = self._verify(incident), self._supervisor.suspect_position()
        proved = result["passed"] and bool(result["probes"])
        self._supervisor.monitor.answered(whole=proved)
        self._record("verification", incident=incident.id, verification=result, position=position)
        self._tell("verification", {"incident": incident.id, **result})
        if not result["passed"]:
            plan = self._supervisor.failed_verification(progress.attempt, progress.step)
            return self._told(plan, _fallen(result))
        self._close(Outcome.RECOVERED)
        return False

    def probe_if_in_doubt(self) -> bool:
        """Probe the model after alarms that were not confirmed; True if a plan came of it.

        What heals by itself may still have hurt: capability tells, not the training loss.
        """
        progress = self._attempts.progress
        onset = self._supervisor.in_doubt(progress.step)
        if onset is None:
            return False
        monitor = self._supervisor.monitor
        if progress.step <= self._supervisor.book.judged_step:  # before the run was resumed
            monitor.answered(whole=self._supervisor.was_whole(progress.step))
            return False
        compared = self._control.harm_since(onset)
        if compared is None:
            monitor.answered(whole=False)
            return False
        harmed = not all(one.passed for one in compared)
        monitor.answered(whole=not harmed)
        probes = [one.to_json() for one in compared]
        self._record("episode_probed", onset_step=onset, harmed=harmed, probes=probes)
        self._tell("episode_probed", {"onset_step": onset, "harmed": harmed, "probes": probes})
        if not harmed:
            return False
        fallen = [one for one in compared if not one.passed]
        worse = [f"{one.probe} worse by {one.difference:.3g}" for one in fallen]
        harm = f"{', '.join(worse)} than before the onset, beyond noise"
        plan = self._supervisor.harm_found(progress.attempt, progress.step, harm)
        return self._told(plan, [one.probe for one in fallen])

    def hand_over(self, why: str) -> None:
        """Stop the run outside a plan, because there is no way on."""
        self._attempts.finish_writing()
        incident = self._supervisor.book.open
        tried = [record.plan.why for record in incident.plans] if incident is not None else []
        progress = self._attempts.progress
        lines = [
            f"Halted after step {progress.step}: {why}.",
            "Tried in this incident: " + ("; then ".join(tried) if tried else "nothing") + ".",
        ]
        self._control.halt("\n".join(lines))
        if incident is not None:
            self._close(Outcome.HALTED)

    def end_of_data(self, end: Exception, num_quarantined: int) -> None:
        """Hand over if the data ended for want of samples, or before a recovery was proved."""
        if isinstance(end, NothingLeftError):
            self.hand_over(str(end))
        elif self._supervisor.book.open is not None:
            aside = f"{num_quarantined} samples are set aside"
            self.hand_over(f"the data ended before the recovery was proved; {aside}")

    def resume(self, from_snapshot: str | None = None) -> None:
        """Take up an interrupted run: finish the plan it was in, else go to its newest state.

        A run that was interrupted before its first snapshot has not trained, and begins anew.

        Args:
            from_snapshot: go back to this one instead, whatever speaks against it.

        Raises:
            ConfigError: one is named while a plan waits to be finished, or before there is any.
        """
        if not self._attempts.has_begun():
            if from_snapshot is not None:
                raise ConfigError(f"there is no snapshot {from_snapshot!r:.80}: the run has none")
            return
        record = self._supervisor.book.unfinished_plan
        if from_snapshot is not None and record is not None:
            raise ConfigError(
                f"the run was stopped while it carried out plan {record.id} "
                f"({record.plan.why}); resume it without from_snapshot first"
            )
        waiting = () if record is None else record.plan.actions[record.done :]
        goes_back = record is not None and record.plan.target_step is not None
        if goes_back and any(call.name == "rollback" for call in waiting):
            self.carry_out_plan()
        else:
            attempts = self._attempts
            named = from_snapshot is not None
            restored = attempts.go_back_to(from_snapshot) if named else attempts.go_back()
            self._tell("resumed", {"step": restored.ref.step, "snapshot": restored.ref.id})
        halted = self._control.halt_note is not None and self._supervisor.book.open is not None
        if halted and record is None:
            self._close(Outcome.HALTED)  # it died just after it was handed over
        self._supervisor.monitor.resumed()

    def _verify(self, incident: Incident) -> dict[str, Any]:
        chain = unproved(self._supervisor.book.incidents)
        plans = [record.id for one in chain for record in one.plans]
        return self._control.verify(plans, incident.onset_step)

    def _verify_again(self) -> bool:
        """Verify the last recovery once more; one that failed opens its incident again.

        One record says both, so that a crash in between leaves an open incident, which is
        verified again on resume. Where nothing older can be gone back to, the run goes on.
        """
        progress = self._attempts.progress
        incident = self._supervisor.book.incidents[-1]
        result = {**self._verify(incident), "again": True}
        fallen = _fallen(result)
        helps = bool(fallen) and self._supervisor.acts and self._has_older(incident)
        if helps:
            result["reopens"] = True
        self._record("verification", incident=incident.id, verification=result)
        self._tell("verification", {"incident": incident.id, **result})
        if not fallen:
            return False
        if not helps:
            self._advise_data(incident.id, fallen)
            return False
        plan = self._supervisor.failed_verification(progress.attempt, progress.step)
        return self._told(plan, fallen)

    def _has_older(self, incident: Incident) -> bool:
        """Whether a healthy state is left from before all that the incident has gone back to."""
        targets = [record.plan.target_step for record in incident.rollbacks]
        oldest = min((step for step in targets if step is not None), default=incident.onset_step)
        return choose_target(self._attempts.refs(), oldest).target is not None

    def _advise_data(self, incident: int, fallen: Sequence[str]) -> None:
        """Journal which data to strengthen, because going back does not help."""
        advice = {"incident": incident, "capabilities": list(fallen)}
        advice["data"] = data_to_strengthen(fallen)
        self._record("strengthen_data", **advice)
        self._tell("strengthen_data", advice)

    def _told(self, plan: PlanRecord | None, fallen: Sequence[str]) -> bool:
        """Tell of a plan that was made between steps; whether there is one."""
        if plan is None:
            return False
        incident = self._supervisor.book.incidents[-1]
        self._tell("plan", {"plan": plan, "incident": incident})
        if fallen and any(call.name == "halt" for call in plan.plan.actions):
            self._advise_data(incident.id, fallen)
        return True

    def _act(self, record: PlanRecord, number: int) -> None:
        call = record.plan.actions[number]
        action = make("actions", call.name, **call.arguments)
        self._control.begin(record.id, number)
        incident = self._supervisor.book.incidents[-1]
        if record.plan.target_step is None and call.name != HALT:
            plans = [one.id for one in incident.plans]
            self._control.keep_reference(plans, incident.onset_step)
        if call.name == PAUSE:  # also in a process that was resumed while it waited
            told = {"plan": record, "incident": incident, "timeout_secs": action.timeout_secs}
            self._tell("waiting", told)
        result = action.apply(self._control)
        self._record("action_done", plan_id=record.id, action=call.name, result=result)
        self._tell("action", {"action": call.name, "result": result, "rung": record.plan.rung})

    def _close(self, outcome: Outcome) -> None:
        incident = self._supervisor.book.open
        assert incident is not None
        progress = self._attempts.progress
        self._supervisor.close(outcome, attempt=progress.attempt, step=progress.step)
        self._tell("incident_closed", {"incident": incident.id, "outcome": outcome.value})

    def _record(self, kind: str, **fields: Any) -> None:
        progress = self._attempts.progress
        self._supervisor.record(kind, attempt=progress.attempt, step=progress.step, **fields)


def again_step(incidents: Sequence[Incident]) -> int | None:
    """The step from which on the last recovery is verified for the second time, if it is to be.

    Ten times as far from the state that was gone back to as the last alarm was, and a step
    after the first verification at least. Where nothing was gone back to, the step before the
    onset stands for that state. Decided from the journal alone: a resume neither forgets it nor
    does it twice. A later incident takes its place, and is verified against a state of its own.
    """
    incident = incidents[-1] if incidents else None
    if incident is None or incident.outcome is not Outcome.RECOVERED:
        return None
    verified = incident.verification
    if verified is None or verified.get("again") or incident.closed_step is None:
        return None
    back = incident.rollbacks[-1].plan.target_step if incident.rollbacks else None
    start = incident.onset_step - 1 if back is None else back
    distance = max(1, incident.last_alarm_step - start)
    return max(start + _AGAIN_FACTOR * distance, incident.closed_step + 1)


def unproved(incidents: Sequence[Incident]) -> list[Incident]:
    """The last incident, and before it those whose recovery was not verified a second time.

    They end with one that was (what fell then, and no older state helps, is known), that had
    nothing to be compared with, or that a person took over.

    >>> from types import SimpleNamespace
    >>> def one(id, **verification):
    ...     return SimpleNamespace(id=id, outcome=Outcome.RECOVERED, verification=verification)
    >>> probed = {"passed": True, "probes": [{}]}
    >>> history = [one(1, **probed), one(2, **probed, again=True), one(3, **probed), one(4)]
    >>> [incident.id for incident in unproved(history)]
    [3, 4]
    """
    found = list(incidents[-1:])
    for one in reversed(incidents[:-1]):
        verified = one.verification or {}
        told = verified.get("again") is True or not verified.get("probes")
        if one.outcome is not Outcome.RECOVERED or told:
            break
        found.append(one)
    return found[::-1]


def _fallen(result: Mapping[str, Any]) -> list[str]:
    """The capabilities that a verification found worse."""
    return [one["probe"] for one in result["probes"] if not one["passed"]]
