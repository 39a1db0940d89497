"""Causes weigh evidence; a diagnosis is the ranked list, and the way it was reached."""

import math
from abc import ABC
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final

from foreshock.core.case import Case
from foreshock.core.detector import Alarm
from foreshock.core.reading import (
    Reading,
    from_json_number,
    from_json_text,
    from_json_whole,
)
from foreshock.core.symptom import MOST, Look, observe, weight_of

_LEAST: Final = 0.05
"""Nats below which a fact is not worth telling."""

_NEGLIGIBLE: Final = 1e-3
"""Probability below which a candidate is recorded without its evidence: there are thirty."""

NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class Born(StrEnum):
    """Where in a step a trouble shows first."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    BETWEEN = "between steps"
    METRIC = "metric"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One fact for or against a cause.

    Attributes:
        statement: the fact in words, with its numbers.
        weight: what it adds to the log-odds of the cause, in nats: positive speaks for
            it, negative against. +2 multiplies the odds by 7.
        readings: the readings behind it.
    """

    statement: str
    weight: float
    readings: tuple[Reading, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        return {
            "statement": self.statement,
            "weight": self.weight,
            "readings": [reading.to_json() for reading in self.readings],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Evidence":
        """Undo `to_json`."""
        readings = tuple(Reading.from_json(one) for one in fields["readings"])
        from_json_number(fields["weight"])
        statement = from_json_text(fields["statement"])
        return cls(statement=statement, weight=fields["weight"], readings=readings)


class Cause(ABC):
    """A hypothesis on why a run left its healthy range.

    A frozen keyword-only dataclass. Its texts tell an engineer what it predicts and how to
    settle it; its tables say the same in numbers, from which `weigh` makes evidence.

    Attributes:
        name: unique within the family; the file bears the same name.
        predicts: which signals move, in what order, where first.
        born: where in a step it shows first; several where it may be either.
        lead: by how many steps the first signal moves before the loss, in words.
        recurs: how it comes again if nothing is done, in words.
        contradicts: what speaks against it.
        settled_by: the experiment that would settle it, in words.
        remedies: what helps, in words, the likeliest first.
        no_help: what is known not to help, in words.
        data_may_be_at_fault: whether the data consumed since the onset is suspect.
        prior: log-odds before any evidence, against `unknown` at 0.
        expects: by symptom, the share of its episodes in which it is present, 0.01 to 0.99.
            One that is not named is as usual, whatever the cause.
        outcomes: by experiment, the probability of each of its outcomes. One that is not
            named says nothing of the cause.
    """

    name: ClassVar[str]
    predicts: ClassVar[str]
    born: ClassVar[tuple[Born, ...]] = ()
    lead: ClassVar[str] = ""
    recurs: ClassVar[str] = ""
    contradicts: ClassVar[str]
    settled_by: ClassVar[str]
    remedies: ClassVar[tuple[str, ...]] = ()
    no_help: ClassVar[tuple[str, ...]] = ()
    data_may_be_at_fault: ClassVar[bool]
    prior: ClassVar[float]
    expects: ClassVar[Mapping[str, float]] = NONE
    outcomes: ClassVar[Mapping[str, Mapping[str, float]]] = NONE

    def weigh(self, case: Case) -> list[Evidence]:
        """Return the evidence in a case, in the order in which its symptoms were looked for."""
        return [*self.of_symptoms(case), *self.of_results(case)]

    def of_symptoms(self, case: Case) -> list[Evidence]:
        """What the symptoms of a case say, by `expects`."""
        found: list[Evidence] = []
        for name, observed in case.symptoms.items():
            expected = self.expects.get(name)
            if expected is None:
                continue
            symptom = observed.symptom
            weight = weight_of(symptom.degree, expected, observed.usual)
            if abs(weight) >= _LEAST:
                found.append(
                    Evidence(statement=symptom.statement, weight=weight, readings=symptom.readings)
                )
        return found

    def of_results(self, case: Case) -> list[Evidence]:
        """What the experiments that were run say, by `outcomes`; of one run twice the last."""
        found: list[Evidence] = []
        for result in {one.experiment: one for one in case.results}.values():
            likely = self.outcomes.get(result.experiment, {}).get(result.outcome)
            if likely is None:
                continue
            weight = math.log(max(likely, 1e-3) * len(result.outcomes))
            weight = max(-MOST, min(MOST, weight))
            if abs(weight) >= _LEAST:
                said = f"experiment {result.experiment}: {result.statement}"
                found.append(Evidence(statement=said, weight=weight))
        return found


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A cause with its probability among the candidates and the evidence behind it."""

    cause: str
    probability: float
    evidence: tuple[Evidence, ...]
    data_may_be_at_fault: bool
    settled_by: str

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        return {
            "cause": self.cause,
            "probability": self.probability,
            "data_may_be_at_fault": self.data_may_be_at_fault,
            "settled_by": self.settled_by,
            "evidence": [evidence.to_json() for evidence in self.evidence],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Candidate":
        """Undo `to_json`."""
        rest: dict[str, Any] = dict(fields)
        rest["evidence"] = tuple(Evidence.from_json(one) for one in fields["evidence"])
        for name in ("cause", "settled_by"):
            from_json_text(fields[name])
        from_json_number(fields["probability"])
        return cls(**rest)


@dataclass(frozen=True, kw_only=True)
class Branch:
    """One question of the decision tree, its answer, and the readings that gave it."""

    question: str
    answer: str
    readings: tuple[Reading, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        return {
            "question": self.question,
            "answer": self.answer,
            "readings": [reading.to_json() for reading in self.readings],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Branch":
        """Undo `to_json`."""
        readings = tuple(Reading.from_json(one) for one in fields["readings"])
        question, answer = from_json_text(fields["question"]), from_json_text(fields["answer"])
        return cls(question=question, answer=answer, readings=readings)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is thought to have happened.

    Attributes:
        onset_step: first step at which a signal left its healthy range (causal).
        alarm_step: step of the first alarm.
        loss_moved_step: first step at which the loss left its range, or None.
        first_mover: the series that moved first.
        candidates: ranked, the likeliest first; probabilities sum to 1. Their evidence begins
            with the strongest.
        path: the way through the decision tree.
        lr_before_jump: the highest learning rate in the steps before it jumped, if it did so
            up to the first alarm and was level or falling until then.
    """

    onset_step: int
    alarm_step: int
    loss_moved_step: int | None
    first_mover: str
    candidates: tuple[Candidate, ...]
    path: tuple[Branch, ...]
    lr_before_jump: float | None = None

    @property
    def top(self) -> Candidate:
        """The likeliest cause."""
        return self.candidates[0]

    @property
    def data_suspicion(self) -> float:
        """Probability of the causes under which the data may be at fault."""
        return sum(one.probability for one in self.candidates if one.data_may_be_at_fault)

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        told: dict[str, Any] = {
            "onset_step": self.onset_step,
            "alarm_step": self.alarm_step,
            "loss_moved_step": self.loss_moved_step,
            "first_mover": self.first_mover,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "path": [branch.to_json() for branch in self.path],
        }
        if self.lr_before_jump is not None:
            told["lr_before_jump"] = self.lr_before_jump
        return told

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Diagnosis":
        """Undo `to_json`."""
        rest: dict[str, Any] = dict(fields)
        rest["candidates"] = tuple(Candidate.from_json(one) for one in fields["candidates"])
        rest["path"] = tuple(Branch.from_json(one) for one in fields["path"])
        for name in ("onset_step", "alarm_step"):
            from_json_whole(fields[name])
        if fields["loss_moved_step"] is not None:
            from_json_whole(fields["loss_moved_step"])
        from_json_text(fields["first_mover"])
        if (rate := fields.get("lr_before_jump")) is not None:
            rest["lr_before_jump"] = from_json_number(rate)
            if not 0 < rest["lr_before_jump"] < math.inf:
                raise ValueError(f"a learning rate of {rate} before it jumped")
        return cls(**rest)


def diagnose(case: Case, causes: Iterable[Cause], looks: Iterable[Look] = ()) -> Diagnosis:
    """Rank the causes of a case: log-odds add up, and are normalised over the candidates.

    Args:
        case: what is known.
        causes: what may be behind it.
        looks: what looks for symptoms in it; without any, those that the case holds count.

    Raises:
        ValueError: the case has no alarm, or there is no cause to rank.
    """
    if not case.alarms:
        raise ValueError("a case without an alarm cannot be diagnosed")
    if looks := tuple(looks):
        case = replace(case, symptoms=observe(case, looks))
    weighed = [(cause, tuple(cause.weigh(case))) for cause in causes]
    if not weighed:
        raise ValueError("no causes were given to rank")
    odds = [cause.prior + sum(fact.weight for fact in facts) for cause, facts in weighed]
    peak = max(odds)
    shares = [math.exp(value - peak) for value in odds]
    total = math.fsum(shares)
    candidates = [
        Candidate(
            cause=cause.name,
            probability=share / total,
            evidence=tuple(sorted(facts, key=_strongest)) if share / total >= _NEGLIGIBLE else (),
            data_may_be_at_fault=cause.data_may_be_at_fault,
            settled_by=cause.settled_by,
        )
        for (cause, facts), share in zip(weighed, shares, strict=True)
    ]
    candidates.sort(key=lambda one: (-one.probability, one.cause))
    first = min(case.alarms, key=_moved_first)
    jump = case.rate_jump
    return Diagnosis(
        onset_step=case.onset_step,
        alarm_step=case.alarms[0].step,
        loss_moved_step=case.loss_moved_step,
        first_mover=first.series,
        candidates=tuple(candidates),
        path=decision_path(case),
        lr_before_jump=None if jump is None or jump.was_rising else jump.highest_before,
    )


def _strongest(fact: Evidence) -> float:
    return -abs(fact.weight)


def _moved_first(alarm: Alarm) -> tuple[int, int, int]:
    """Earliest onset; among equals the whole run before its parts, and the loss last."""
    return alarm.onset_step, not alarm.series.endswith("/global"), alarm.signal == "loss"


def decision_path(case: Case) -> tuple[Branch, ...]:
    """Walk the decision tree of the sources: non-finite? falls back by itself? or lasting?"""
    broken = [a for a in case.alarms if not math.isfinite(a.value)]
    gradient = [a for a in broken if a.signal in ("grad_norm", "loss", "param_norm")]
    question = "Is the gradient norm, the loss or a weight NaN or Inf?"
    if gradient:
        answer = f"yes, {gradient[0].series} at step {gradient[0].step}: overflow or broken state"
        return (Branch(question=question, answer=answer, readings=_of(case, gradient)),)
    first = Branch(question=question, answer="no", readings=_of(case, case.alarms[:1]))
    question = "Has every signal fallen back into its range by itself?"
    last = case.alarms[-1]
    if case.last_step > last.step:
        answer = f"yes, since step {last.step + 1}: a hard or odd batch is the first suspect"
    else:
        answer = f"not by step {case.last_step}: lasting instability, or still inside bad data"
    return first, Branch(question=question, answer=answer, readings=_of(case, [last]))


def _of(case: Case, alarms: Sequence[Alarm]) -> tuple[Reading, ...]:
    found: list[Reading] = []
    for alarm in alarms:
        found += case.timeline.readings(alarm.series, alarm.step, alarm.step)
    return tuple(found)
