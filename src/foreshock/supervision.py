"""Supervision: what alarms lead to. Journals every decision before it is carried out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshock.core.case import BatchFinding
from foreshock.core.cause import Diagnosis
from foreshock.core.errors import ConfigError
from foreshock.core.incident import Incident, IncidentBook, Outcome, PlanRecord
from foreshock.core.names import GRAD_NORM, series_name
from foreshock.core.policy import Policy, Situation
from foreshock.core.pressing import is_pressing
from foreshock.core.reading import json_number
from foreshock.core.snapshot import SnapshotRef
from foreshock.core.starts import history_of
from foreshock.core.verdict import gate_reason
from foreshock.journal import Journal
from foreshock.monitor import Monitor
from foreshock.observation import Row

_SCALER_PATIENCE_SKIPS = 24
"""Overflows in a row that a loss scaler is left alone with: 2^24 down to 1."""


class Supervisor:
    """Follows a run row by row, opens incidents, and plans what is to be done.

    Plans and incidents are never rewound: `book` is folded from the journal, so that a
    rollback does not forget what it was made for.

    Args:
        monitor: what watches.
        policy: what decides.
        journal: where decisions are kept.
        has_scaler: whether a loss scaler handles overflowing gradients.
        findings: `(first_step, last_step) ->` what stands out in the samples trained in
            these steps, or None if they cannot be looked at.
        snapshots: gives the snapshots of the run's lineage.
        position_after: gives the watermark of the stream after a step.
        lag_steps: steps between a measurement and its reading.
        num_samples: raw positions that the stream has in all; None where it has no end.
        advise: journal what would be done, and do nothing of it.
        tell: hears of advice.

    With `advise` a decision becomes an `advice` record, and the run goes on as it is. What was
    advised has not been tried: it opens no incident, spends no budget, and no later advice
    climbs on from it. The episode counts as answered until it is over; the next one is
    decided on anew.

    Raises:
        ConfigError: `advise`, and the run has an open incident.

    A decision is a function of the steps up to the one that is judged, whenever the host
    comes to read it: a run that was stopped or killed decides as one that was not.
    """

    def __init__(
        self,
        monitor: Monitor,
        policy: Policy,
        journal: Journal,
        *,
        has_scaler: bool,
        findings: Callable[[int, int], Sequence[BatchFinding] | None],
        snapshots: Callable[[], list[SnapshotRef]],
        position_after: Callable[[int], int],
        lag_steps: int,
        num_samples: int | None = None,
        advise: bool = False,
        tell: Callable[[str, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.monitor = monitor
        self.policy = policy
        self.book = IncidentBook(journal.records)
        self._journal = journal
        self._has_scaler = has_scaler
        self._findings = findings
        self._snapshots = snapshots
        self._position_after = position_after
        self._lag_steps = lag_steps
        self._num_samples = num_samples
        self._advise = advise
        self._tell = tell
        if advise and (self.book.open is not None or self.book.unfinished_plan is not None):
            raise ConfigError(
                "this run has an open incident, whose plans are being carried out; resume it "
                "without advise, or begin a new run directory"
            )

    @property
    def acts(self) -> bool:
        """Whether what is decided is carried out."""
        return not (self._advise or self.policy.watch_only)

    def is_quiet(self) -> bool:
        """Whether the last alarm lies so far back that what followed it can be verified.

        Not whether the episode is over: where outliers are frequent, none ever is.
        """
        monitor = self.monitor
        since = monitor.last_step - monitor.last_alarm_step
        return not monitor.episode or since >= self.policy.settle_steps

    def record(self, kind: str, *, attempt: int, step: int, **fields: Any) -> dict[str, Any]:
        """Journal a decision durably, and fold it into the book."""
        record = self._journal.write(kind, attempt=attempt, step=step, **fields)
        self.book.apply(record)
        return record

    def see(self, attempt: int, row: Row, gate_limit: float) -> PlanRecord | None:
        """Take in one step; return the plan if one was made, journalled and durable."""
        alarms = self.monitor.observe(attempt, row.step, row.committed, row.values)
        norm = self._value(series_name(GRAD_NORM.name), row.step)
        if not row.committed:
            self._journal.write(
                "skip",
                attempt=attempt,
                step=row.step,
                durable=False,
                reason=gate_reason(norm, gate_limit),
                grad_norm=json_number(norm),
            )
        for said in row.findings:
            self._journal.write("finding", attempt=attempt, step=row.step, what=said)
        for alarm in alarms:
            self._journal.write(
                "alarm", attempt=attempt, step=row.step, durable=False, alarm=alarm.to_json()
            )
        if self.book.unfinished_plan is not None:
            return None  # what is decided is carried out before anything else is
        if row.step <= self.book.judged_step:
            return None  # it was judged before the run was resumed
        if self._is_advised():
            return None
        must_act = any(is_pressing(alarm, committed=row.committed) for alarm in alarms)
        due = must_act or self.policy.due(
            self.monitor.tallies(self.policy.confirm_within_steps),
            still_alarmed=self.monitor.still_alarmed,
            in_incident=self.book.open is not None,
            skips=self.monitor.consecutive_skips,
        )
        if not due or not self.monitor.episode:
            return None
        first = min(alarm.onset_step for alarm in self.monitor.episode)
        incident = self.book.open
        tried = [record.plan.rung for record in incident.plans] if incident is not None else []
        diagnosis = self._explain(first, row.step, tried)
        position = self._position_after(row.step)
        return self._decide(attempt, row.step, diagnosis, must_act, position)

    def settled_step(self) -> int | None:
        """The step from which on the open incident's recovery can be verified, if any."""
        incident = self.book.open
        if incident is None or not incident.plans:
            return None
        beyond = self.policy.settle_steps if incident.rollbacks else self.policy.quiet_steps
        # What opened it again is found again where it was found, should there be no plan yet.
        return max(incident.last_alarm_step + beyond, incident.reopened_step or 0)

    def in_doubt(self, step: int) -> int | None:
        """The onset of an unconfirmed episode that is old enough to be probed, if any."""
        doubt = self.monitor.first_doubt()
        if self._is_advised():
            return None
        if doubt is None or self.book.open is not None or self.book.unfinished_plan is not None:
            return None
        if step < doubt + self.policy.doubt_steps:
            return None
        return min(alarm.onset_step for alarm in self.monitor.episode)

    def was_whole(self, step: int) -> bool:
        """Whether a probe after this step, before the run was resumed, found no harm."""
        for one in reversed(self._journal.records):
            if one["step"] == step and one["kind"] == "episode_probed":
                return not one["harmed"]
            if one["step"] == step and one["kind"] == "verification":
                found = one["verification"]
                return bool(found["passed"] and found["probes"])
        return False

    def harm_found(self, attempt: int, step: int, harm: str) -> PlanRecord | None:
        """A probe found that an episode, confirmed or not, has hurt the model: plan for it.

        The steps since its last alarm were quiet, and their data is not suspect.
        """
        episode = self.monitor.episode
        first = min(alarm.onset_step for alarm in episode)
        diagnosis = self._explain(first, step, harm=harm)
        position = self._position_after(max(alarm.step for alarm in episode))
        return self._decide(attempt, step, diagnosis, True, position)

    def failed_verification(self, attempt: int, step: int) -> PlanRecord | None:
        """A recovery did not make the model whole: plan the next rung."""
        incident = self.book.open
        assert incident is not None
        diagnosis, position = Diagnosis.from_json(incident.diagnosis), self.suspect_position()
        return self._decide(attempt, step, diagnosis, True, position)

    def suspect_position(self) -> int:
        """Watermark up to which data may have hurt what the open incident's last plan has left.

        That is where the plan was made, or the last alarm after it: what trained quietly since
        is not suspect, however long ago that was. The verification that asks for it first
        keeps it, since later ones see further alarms, which are not this incident's.
        """
        incident = self.book.open
        assert incident is not None
        if incident.suspect_position is not None:
            return incident.suspect_position
        last = incident.plans[-1]
        begun = last.step if last.plan.target_step is None else last.plan.target_step
        alarmed = self.monitor.last_alarm_step
        if alarmed <= begun:
            return last.position
        return max(last.position, self._position_after(alarmed))

    def close(self, outcome: Outcome, *, attempt: int, step: int) -> None:
        """End the open incident."""
        incident = self.book.open
        assert incident is not None
        self.record(
            "incident_closed",
            attempt=attempt,
            step=step,
            incident=incident.id,
            outcome=outcome.value,
            judged_step=self.monitor.last_step,
        )

    def _explain(
        self, first: int, last: int, tried: Sequence[str] = (), *, harm: str = ""
    ) -> Diagnosis:
        """Diagnose the present episode, by its data of these steps and by what went before."""
        return self.monitor.diagnose(
            self._findings(first, last),
            tried,
            harm=harm,
            history=history_of(self._journal.records, last),
        )

    def _decide(
        self, attempt: int, step: int, diagnosis: Diagnosis, must_act: bool, position: int
    ) -> PlanRecord | None:
        incident = self.book.open
        now = self._situation(step, diagnosis, must_act, incident, position)
        plan = self.policy.decide(now)
        if plan is None:
            return None
        alarms = [alarm.to_json() for alarm in self.monitor.episode]
        if self._advise:
            said = {"plan": plan.to_json(), "diagnosis": diagnosis.to_json(), "alarms": alarms}
            number = len(self.book.advices) + 1
            record = self.record("advice", attempt=attempt, step=step, advice_id=number, **said)
            if self._tell is not None:
                self._tell("advice", record)
            return None
        number = incident.id if incident is not None else len(self.book.incidents) + 1
        self.record(
            "plan",
            attempt=attempt,
            step=step,
            incident=number,
            plan_id=self.book.num_plans + 1,
            position=position,
            window=now.window,
            plan=plan.to_json(),
            diagnosis=diagnosis.to_json(),
            alarms=alarms,
            last_alarm_step=max((alarm["step"] for alarm in alarms), default=step),
        )
        return self.book.incidents[-1].plans[-1]

    def _is_advised(self) -> bool:
        """Whether the present episode has been answered by advice."""
        given = self.book.advices[-1] if self.book.advices else None
        episode = self.monitor.episode
        return given is not None and bool(episode) and episode[0].step <= given["step"]

    def _situation(
        self,
        step: int,
        diagnosis: Diagnosis,
        must_act: bool,
        incident: Incident | None,
        position: int,
    ) -> Situation:
        episode = self.monitor.episode
        gradients = all(alarm.signal == GRAD_NORM.name for alarm in episode)
        scaler = self._has_scaler and gradients
        scaler = scaler and all(alarm.kind == "nonfinite" for alarm in episode)
        first = self._position_after(diagnosis.onset_step - 1)
        return Situation(
            step=step,
            diagnosis=diagnosis,
            must_act=must_act,
            only_gradients=gradients and bool(episode),
            consecutive_skips=self.monitor.consecutive_skips,
            handled_by_scaler=scaler and self.monitor.consecutive_skips <= _SCALER_PATIENCE_SKIPS,
            gradient_limit=self.monitor.limit(series_name(GRAD_NORM.name)),
            incident=incident,
            snapshots=self._snapshots(),
            position=position,
            num_rollbacks=self.book.num_rollbacks,
            lag_steps=self._lag_steps,
            earlier=[one for one in self.book.incidents if one is not incident],
            window=(first, position) if first < position else None,
            num_samples=self._num_samples,
        )

    def _value(self, series: str, step: int) -> float:
        values = self.monitor.timeline.values(series, step, step)
        return float(values[0]) if len(values) else float("nan")
