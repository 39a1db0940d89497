"""Incidents, rebuilt from the journal: what was decided is never rewound."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from foreshock.core.action import Plan


class Outcome(StrEnum):
    """How an incident ended."""

    RECOVERED = "recovered"
    HALTED = "halted"


@dataclass(kw_only=True)
class PlanRecord:
    """A plan with what has become of it.

    Attributes:
        id: number of the plan in the run.
        attempt: attempt in which it was decided.
        step: step at which it was decided.
        position: watermark up to which data may have had a part in what it answers.
        window: raw positions `[start, stop)` from the onset to there, or None.
        done: number of its actions that have been carried out.
        results: what each did, in words.
        finished: whether all of them have.
    """

    id: int
    plan: Plan
    attempt: int
    step: int
    position: int
    window: tuple[int, int] | None = None
    results: list[str] = field(default_factory=list[str])
    finished: bool = False

    @property
    def done(self) -> int:
        """How many of its actions have been carried out."""
        return len(self.results)


@dataclass(kw_only=True)
class Incident:
    """From the first alarm to verified recovery, with everything decided between.

    Attributes:
        id: number of the incident in the run, from 1.
        onset_step: first step at which a signal left its range.
        alarm_step: step of the first alarm.
        last_alarm_step: latest alarmed step so far; recovery is judged beyond it.
        cause: the likeliest cause when it was opened.
        diagnosis: the JSON of the latest diagnosis.
        plans: in order.
        outcome: None while open.
        verification: the JSON of the latest verification.
        suspect_position: watermark up to which data may have hurt what the last plan has left,
            as the verification of that saw it; None before.
        reopened_step: where a later verification opened it again, until that has led to a plan.
    """

    id: int
    attempt: int
    onset_step: int
    alarm_step: int
    last_alarm_step: int
    loss_moved_step: int | None
    first_mover: str
    cause: str
    diagnosis: dict[str, Any]
    alarms: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    plans: list[PlanRecord] = field(default_factory=list[PlanRecord])
    outcome: Outcome | None = None
    verification: dict[str, Any] | None = None
    closed_step: int | None = None
    suspect_position: int | None = None
    reopened_step: int | None = None
    _told: set[str] = field(default_factory=set[str], repr=False, compare=False)

    def covers(self, step: int) -> bool:
        """Whether the incident was open at a step of the run's present lineage.

        Told from the step and not from the present, so that a snapshot which a resumed run
        takes anew is judged as the first one was.
        """
        begun = any(
            step >= record.step
            if record.plan.target_step is None
            else step > record.plan.target_step
            for record in self.plans
        )
        return begun and (self.closed_step is None or step < self.closed_step)

    def take_alarms(self, alarms: Iterable[dict[str, Any]], *, once: bool) -> None:
        """Keep these alarms; with `once`, only those that have not been told before."""
        keyed = [(json.dumps(alarm, sort_keys=True), alarm) for alarm in alarms]
        self.alarms += [alarm for key, alarm in keyed if not (once and key in self._told)]
        self._told.update(key for key, _ in keyed)

    @property
    def rollbacks(self) -> list[PlanRecord]:
        """The plans that went back."""
        return [record for record in self.plans if record.plan.target_step is not None]


class IncidentBook:
    """Every incident of a run, folded from the journal's records.

    >>> book = IncidentBook()
    >>> book.open is None
    True
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self.incidents: list[Incident] = []
        self.advices: list[Mapping[str, Any]] = []
        """What was advised and not carried out: the records, in order."""
        self.num_plans = 0
        self.judged_step = 0
        """Last step of the lineage that is known to have been judged: a run that is resumed
        from before it passes it once more, and what was decided on it stands."""
        for record in records:
            self.apply(record)

    @property
    def open(self) -> Incident | None:
        """The incident that has not ended yet; there is at most one."""
        last = self.incidents[-1] if self.incidents else None
        return last if last is not None and last.outcome is None else None

    @property
    def unfinished_plan(self) -> PlanRecord | None:
        """A plan that was journalled but not carried out to its end."""
        incident = self.incidents[-1] if self.incidents else None
        if incident is None or not incident.plans:
            return None
        last = incident.plans[-1]
        return None if last.finished else last

    @property
    def num_rollbacks(self) -> int:
        """Rollbacks in the whole run."""
        return sum(len(incident.rollbacks) for incident in self.incidents)

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take in one record of the journal; kinds that are not about incidents pass by."""
        match record["kind"]:
            case "snapshot_chosen":
                self.judged_step = min(self.judged_step, record["target_step"])
            case "plan":
                self._planned(record)
            case "advice":
                self.advices.append(record)
                self.judged_step = max(self.judged_step, record["step"])
            case "action_done":
                self.incidents[-1].plans[-1].results.append(record["result"])
            case "plan_done":
                self.incidents[-1].plans[-1].finished = True
            case "verification":
                self.incidents[-1].verification = record["verification"]
                if "position" in record:
                    self.incidents[-1].suspect_position = record["position"]
                if record["verification"].get("reopens"):
                    self.incidents[-1].outcome = self.incidents[-1].closed_step = None
                    self.incidents[-1].reopened_step = record["step"]
            case "incident_closed":
                self.incidents[-1].outcome = Outcome(record["outcome"])
                self.incidents[-1].closed_step = record["step"]
                halted = self.incidents[-1].outcome is Outcome.HALTED
                self.judged_step = 0 if halted else record["judged_step"]
            case _:
                pass

    def _planned(self, record: Mapping[str, Any]) -> None:
        """One record opens an incident or takes it further, and holds the plan: all or nothing."""
        diagnosis, alarms = record["diagnosis"], record["alarms"]
        planned = PlanRecord(
            id=record["plan_id"],
            plan=Plan.from_json(record["plan"]),
            attempt=record["attempt"],
            step=record["step"],
            position=record["position"],
            window=tuple(record["window"]) if record.get("window") else None,
        )
        incident = self.open
        if incident is None:
            incident = Incident(
                id=record["incident"],
                attempt=record["attempt"],
                onset_step=diagnosis["onset_step"],
                alarm_step=diagnosis["alarm_step"],
                last_alarm_step=record["last_alarm_step"],
                loss_moved_step=diagnosis["loss_moved_step"],
                first_mover=diagnosis["first_mover"],
                cause=diagnosis["candidates"][0]["cause"],
                diagnosis=diagnosis,
            )
            self.incidents.append(incident)
        incident.diagnosis = diagnosis
        incident.suspect_position = incident.reopened_step = None
        incident.last_alarm_step = max(incident.last_alarm_step, record["last_alarm_step"])
        # Each plan tells its whole episode, which the one before may have told in part.
        same = bool(incident.plans) and incident.plans[-1].attempt == planned.attempt
        incident.take_alarms(alarms, once=same)
        self.num_plans = max(self.num_plans, planned.id)
        target = planned.plan.target_step
        self.judged_step = planned.step if target is None else target
        incident.plans.append(planned)
