"""One incident as a report tells it: what moved, why, what was decided, what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from foreshock.core.cause import Candidate, Diagnosis
from foreshock.core.detector import Alarm
from foreshock.core.incident import Incident, Outcome, PlanRecord
from foreshock.core.records import number
from foreshock.report.aftermath import Aftermath
from foreshock.report.clean import real, strict, whole
from foreshock.report.counsel import Counsel, counsel_of
from foreshock.report.events import Event, merged
from foreshock.report.words import OPEN, count, how_it_ended, lead, plain

DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""What reading a record that is not as it should be may raise."""


@dataclass(kw_only=True)
class Trail:
    """What the journal says around an incident beyond what `IncidentBook` keeps.

    Attributes:
        time: when it was opened, in seconds.
        arrivals: plan id to (attempt, step) at which the run stood after its rollback.
        verifications: (attempt, step, JSON), in order.
        closed_attempt: attempt in which it ended.
        doubt: (attempt, step, JSON of the probes) of the probe that found harm done by
            alarms which had healed, if that is how it was opened.
    """

    time: float | None = None
    doubt: tuple[int, int, list[Any]] | None = None
    arrivals: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    verifications: list[tuple[int, int, dict[str, Any]]] = field(
        default_factory=list[tuple[int, int, dict[str, Any]]]
    )
    closed_attempt: int | None = None
    after: Aftermath = field(default_factory=Aftermath)


@dataclass(frozen=True, kw_only=True)
class PlanSummary:
    """What was decided and why, and what it did.

    Attributes:
        step: last step that had been read when it was decided.
        actions: (name, arguments in words), in order.
        results: what each did; fewer than `actions` while it is not carried out.
        target_step: step that it goes back to, if it does.
        back_to: (attempt, step) at which the run stood after the rollback, once it went back.
    """

    id: int
    attempt: int
    step: int
    rung: str
    why: str
    actions: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    finished: bool
    target_step: int | None
    back_to: tuple[int, int] | None

    @property
    def goal(self) -> int | None:
        """The step that it went back to, or is to."""
        return self.target_step if self.back_to is None else self.back_to[1]


@dataclass(frozen=True, kw_only=True)
class ProbeSummary:
    """One capability before and after; lower is better, NaN and Inf are possible."""

    probe: str
    before: float
    after: float
    difference: float
    tolerance: float
    passed: bool


@dataclass(frozen=True, kw_only=True)
class VerificationSummary:
    """A verification: is the model whole again?

    Attributes:
        again: whether it is the second one, at ten times the distance.
    """

    attempt: int
    step: int
    passed: bool
    again: bool
    against: str
    probes: tuple[ProbeSummary, ...]
    note: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object, which may still hold NaN and Inf."""
        return {**vars(self), "probes": [vars(probe) for probe in self.probes]}


@dataclass(frozen=True, kw_only=True)
class AlarmedSeries:
    """A series that raised alarms in an incident: how often, and the first of them."""

    series: str
    kind: str
    detector: str
    step: int
    onset_step: int
    value: float
    baseline: float
    threshold: float
    num_alarms: int


@dataclass(frozen=True, kw_only=True)
class IncidentSummary:
    """An incident; steps of the onset, the alarm and the loss are those of `attempt`.

    Attributes:
        cause: likeliest by the latest diagnosis, which has the most evidence.
        first_cause: likeliest when it was opened.
        lead: which series moved first, and how long before the loss, in words.
        outcome: "recovered", "halted" or "open".
        ending: the same in words.
        num_set_aside: samples that its plans set aside.
        doubt: the probe that opened it, if its alarms had healed but harm was found.
        after: what came after its plans.
    """

    number: int
    time: float | None
    attempt: int
    cause: str
    probability: float
    first_cause: str
    onset_step: int
    alarm_step: int
    loss_moved_step: int | None
    closed_step: int | None
    closed_attempt: int | None
    first_mover: str
    lead: str
    outcome: str
    ending: str
    num_set_aside: int
    settled_by: str
    diagnosis: Diagnosis
    alarms: tuple[AlarmedSeries, ...]
    plans: tuple[PlanSummary, ...]
    verifications: tuple[VerificationSummary, ...]
    doubt: VerificationSummary | None
    after: Aftermath

    @property
    def alternatives(self) -> tuple[Candidate, ...]:
        """The other causes, the likeliest first."""
        return self.diagnosis.candidates[1:]

    @property
    def counsel(self) -> Counsel:
        """What helps against its cause, and what would make surer of it."""
        acted = max((plan.step for plan in self.plans), default=self.alarm_step)
        return counsel_of(self.diagnosis.candidates, acted - self.onset_step + 1)

    @property
    def back_to(self) -> int | None:
        """Where the last rollback went, if there was one."""
        found = [plan.back_to for plan in self.plans if plan.back_to is not None]
        return found[-1][1] if found else None

    @property
    def events(self) -> list[Event]:
        """Its timeline, in the order in which things happened."""
        first, last = self.attempt, self.closed_attempt or self.attempt
        told: list[tuple[int, Event]] = [
            (0, Event(first, self.onset_step, "Onset", f"{self.first_mover} left its range", "")),
            (0, Event(first, self.alarm_step, "First alarm", "", "")),
        ]
        if self.loss_moved_step is not None:
            told.append((0, Event(first, self.loss_moved_step, "Loss moved", "", "bad")))
        if self.doubt is not None:
            at = (self.doubt.attempt, self.doubt.step)
            told.append((1, Event(*at, "Probed, harm found", "the alarms had healed", "bad")))
        for plan in self.plans:
            told.append(
                (2, Event(plan.attempt, plan.step, f"Plan {plan.id}: {plan.rung}", "", "act"))
            )
            if plan.back_to is not None:
                attempt, step = plan.back_to
                told.append((0, Event(attempt, step, "Rolled back", f"attempt {attempt}", "act")))
        for one in self.verifications:
            title, tone = ("Verified", "good") if one.passed else ("Not whole", "bad")
            title += " once more" if one.again and one.passed else ""
            detail = "" if one.probes else "not probed"
            told.append((1, Event(one.attempt, one.step, title, detail, tone)))
        told += [
            (3, Event(one.attempt, one.step, "Paused", one.ending, "act"))
            for one in self.after.pauses
        ]
        if self.closed_step is not None:
            tone = "bad" if self.outcome == Outcome.HALTED else "good"
            told.append((3, Event(last, self.closed_step, self.outcome.capitalize(), "", tone)))
        told.sort(key=lambda one: (one[1].attempt, one[1].step, one[0]))
        events = [event for _, event in told]
        return merged(events)

    @property
    def decided(self) -> str:
        """What was decided, short."""
        rungs = [plan.rung for plan in self.plans]
        goals = {plan.rung: plan.goal for plan in self.plans}
        parts = [
            rung
            + (f" ×{rungs.count(rung)}" if rungs.count(rung) > 1 else "")
            + ("" if goal is None else f" to step {goal:,}")
            for rung, goal in goals.items()
        ]
        if self.num_set_aside:
            parts.append(f"{count(self.num_set_aside, 'sample')} set aside")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        fields = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        return strict(
            {
                **fields,
                "back_to_step": self.back_to,
                "alarms": [vars(alarm) for alarm in self.alarms],
                "plans": [vars(plan) for plan in self.plans],
                "verifications": [one.to_json() for one in self.verifications],
                "doubt": self.doubt.to_json() if self.doubt is not None else None,
                **self.after.to_json(),
                "counsel": asdict(self.counsel),
                "diagnosis": self.diagnosis.to_json(),
            }
        )


_PLAIN_FIELDS = (
    *("number", "time", "attempt", "cause", "probability", "first_cause", "onset_step"),
    *("alarm_step", "loss_moved_step", "closed_step", "closed_attempt", "first_mover", "lead"),
    *("outcome", "ending", "num_set_aside", "settled_by"),
)


def summarise_incident(incident: Incident, trail: Trail, num_set_aside: int) -> IncidentSummary:
    """One incident of the book, with what else the journal says about it.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: see `DAMAGE`; a record is not as
            it should be.
    """
    diagnosis = _sound(Diagnosis.from_json(incident.diagnosis))
    plans = tuple(_plan(record, trail) for record in incident.plans)
    checks = tuple(_verification(*one) for one in trail.verifications)
    moved = incident.loss_moved_step
    onset = whole(incident.onset_step)
    outcome = incident.outcome.value if incident.outcome is not None else OPEN
    return IncidentSummary(
        number=whole(incident.id),
        time=trail.time,
        attempt=whole(incident.attempt),
        cause=diagnosis.top.cause,
        probability=diagnosis.top.probability,
        first_cause=str(incident.cause),
        onset_step=onset,
        alarm_step=whole(incident.alarm_step),
        loss_moved_step=None if moved is None else whole(moved),
        closed_step=None if incident.closed_step is None else whole(incident.closed_step),
        closed_attempt=trail.closed_attempt,
        first_mover=str(incident.first_mover),
        lead=lead(str(incident.first_mover), onset, moved),
        outcome=outcome,
        ending=how_it_ended(
            outcome,
            went_back=any(plan.back_to is not None for plan in plans),
            num_probes=len(checks[-1].probes) if checks else 0,
            fell=bool(checks) and not checks[-1].passed,
        ),
        num_set_aside=num_set_aside,
        settled_by=diagnosis.top.settled_by,
        diagnosis=diagnosis,
        alarms=_alarmed(incident.alarms),
        plans=plans,
        verifications=checks,
        doubt=None if trail.doubt is None else _doubt(*trail.doubt),
        after=trail.after,
    )


def _sound(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis, if it can be shown: there is a candidate, and its numbers are numbers."""
    if not diagnosis.candidates:
        raise ValueError("a diagnosis without a candidate")
    for candidate in diagnosis.candidates:
        real(candidate.probability)
        for fact in candidate.evidence:
            real(fact.weight)
    return diagnosis


def _plan(record: PlanRecord, trail: Trail) -> PlanSummary:
    target = record.plan.target_step
    return PlanSummary(
        id=whole(record.id),
        attempt=whole(record.attempt),
        step=whole(record.step),
        rung=record.plan.rung,
        why=record.plan.why,
        actions=tuple((call.name, _arguments(call.arguments)) for call in record.plan.actions),
        results=tuple(str(result) for result in record.results),
        finished=record.finished,
        target_step=None if target is None else whole(target),
        back_to=trail.arrivals.get(record.id),
    )


def _arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{plain(name)} {value}" for name, value in arguments.items())


def _verification(attempt: int, step: int, fields: Mapping[str, Any]) -> VerificationSummary:
    return VerificationSummary(
        attempt=attempt,
        step=step,
        passed=fields["passed"] is True,
        again=fields.get("again") is True,
        against=str(fields.get("against", "")),
        probes=tuple(
            ProbeSummary(
                probe=str(probe["probe"]),
                before=number(probe["before"]),
                after=number(probe["after"]),
                difference=number(probe["difference"]),
                tolerance=number(probe["tolerance"]),
                passed=probe["passed"] is True,
            )
            for probe in fields["probes"]
        ),
        note=str(fields.get("note", "")),
    )


def _doubt(attempt: int, step: int, probes: list[Any]) -> VerificationSummary:
    return _verification(attempt, step, {"passed": False, "probes": probes})


def _alarmed(alarms: Sequence[dict[str, Any]]) -> tuple[AlarmedSeries, ...]:
    """The alarmed series, the earliest onset first; an alarm told twice counts once."""
    first: dict[str, Alarm] = {}
    steps: dict[str, set[tuple[str, int]]] = {}
    for fields in alarms:
        alarm = Alarm.from_json(fields)
        first.setdefault(alarm.series, alarm)
        steps.setdefault(alarm.series, set()).add((alarm.detector, whole(alarm.step)))
    found = [
        AlarmedSeries(
            series=series,
            kind=alarm.kind.value,
            detector=alarm.detector,
            step=alarm.step,
            onset_step=whole(alarm.onset_step),
            value=alarm.value,
            baseline=alarm.baseline,
            threshold=alarm.threshold,
            num_alarms=len(steps[series]),
        )
        for series, alarm in first.items()
    ]
    return tuple(sorted(found, key=lambda one: (one.onset_step, one.step, one.series)))
