"""Recovery: plans are carried out, recoveries verified, interrupted runs taken up again."""

from collections.abc import Callable, Mapping
from typing import Any

from foreshock.attempts import Attempts
from foreshock.catalog import make
from foreshock.control import Control
from foreshock.core.incident import Outcome, PlanRecord
from foreshock.data.stream import NothingLeftError
from foreshock.supervision import Supervisor

Tell = Callable[[str, Mapping[str, Any]], None]


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
            self._close(Outcome.HALTED)
        self._record("plan_done", plan_id=record.id)
        return True

    def verify_if_settled(self) -> bool:
        """Verify the open incident's recovery once it has settled; True if a new plan came."""
        settled = self._supervisor.settled_step()
        quiet = not self._supervisor.monitor.episode
        if settled is None or not quiet or self._attempts.progress.step < settled:
            return False
        incident = self._supervisor.book.open
        assert incident is not None
        result = self._control.verify(
            went_back=bool(incident.rollbacks), onset_step=incident.onset_step
        )
        self._record("verification", incident=incident.id, verification=result)
        self._tell("verification", {"incident": incident.id, **result})
        if not result["passed"]:
            progress = self._attempts.progress
            plan = self._supervisor.failed_verification(progress.attempt, progress.step)
            return self._told(plan)
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
        monitor.probed_step = monitor.episode[-1].step
        if progress.step <= self._supervisor.book.judged_step:
            return False  # it was probed before the run was resumed
        compared = self._control.harm_since(onset)
        if compared is None:
            return False
        harmed = not all(one.passed for one in compared)
        probes = [one.to_json() for one in compared]
        self._record("episode_probed", onset_step=onset, harmed=harmed, probes=probes)
        self._tell("episode_probed", {"onset_step": onset, "harmed": harmed, "probes": probes})
        if not harmed:
            return False
        worse = [f"{one.probe} worse by {one.difference:.3g}" for one in compared if not one.passed]
        harm = f"{', '.join(worse)} than before the onset, beyond noise"
        return self._told(self._supervisor.harm_found(progress.attempt, progress.step, harm))

    def hand_over(self, why: str) -> None:
        """Stop the run outside a plan, because there is no way on."""
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

    def resume(self) -> None:
        """Take up an interrupted run: finish the plan it was in, else go to its newest state.

        A run that was interrupted before its first snapshot has not trained, and begins anew.
        """
        if not self._attempts.has_begun():
            return
        record = self._supervisor.book.unfinished_plan
        waiting = () if record is None else record.plan.actions[record.done :]
        goes_back = record is not None and record.plan.target_step is not None
        if goes_back and any(call.name == "rollback" for call in waiting):
            self.carry_out_plan()
        else:
            restored = self._attempts.go_back()
            self._tell("resumed", {"step": restored.ref.step, "snapshot": restored.ref.id})
        self._supervisor.monitor.resumed()

    def _told(self, plan: PlanRecord | None) -> bool:
        """Tell of a plan that was made between steps; whether there is one."""
        if plan is None:
            return False
        self._tell("plan", {"plan": plan, "incident": self._supervisor.book.incidents[-1]})
        return True

    def _act(self, record: PlanRecord, number: int) -> None:
        call = record.plan.actions[number]
        action = make("actions", call.name, **call.arguments)
        self._control.begin(record.id, number)
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
