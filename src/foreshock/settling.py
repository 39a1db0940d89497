"""Which experiment comes next, and when a cause is settled."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from foreshock.catalog import make, members
from foreshock.core.case import Case
from foreshock.core.cause import Candidate, Cause, Diagnosis, diagnose
from foreshock.core.errors import ConfigError
from foreshock.core.experiment import Experiment, Result, Tables
from foreshock.core.timeline import Timeline
from foreshock.experiment_choice import CONTROL, expected_nats, next_of
from foreshock.recipes import Recipe
from foreshock.scene import Scene
from foreshock.trial import BudgetSpentError, NoResultError

ENOUGH: Final = 0.9
"""Probability from which on the likeliest cause counts as settled."""
_ONLY_ADVISORY: Final = (
    "only advisory alarms were raised: they open no episode, in a replay either, so that none "
    "could tell whether the trouble comes back"
)
_FLOOR: Final = 1e-9
_LONGEST: Final = 300

PRESETS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "batch": (
            CONTROL,
            "clean_control",
            "replay",
            "other_batch",
            "other_split",
            "twice",
            "eager",
            "bisection",
            "left_out",
        )
    }
)
"""Experiments by the name of an investigation, in order. `batch` is the five-step investigation of
a batch: a timeline, the batch on an earlier state, its statistics, other splits and kernels, and
only then the data."""

Diagnose = Callable[[Sequence[Result]], Diagnosis]
"""The diagnosis once these results are known."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What came of one experiment.

    Attributes:
        experiment: its name.
        result: None where it told nothing.
        reason: why it told nothing, in words.
        before: probabilities of the causes before it.
        after: those after it.
    """

    experiment: str
    result: Result | None = None
    reason: str = ""
    before: Mapping[str, float]
    after: Mapping[str, float]

    @property
    def moved(self) -> str:
        """How the likeliest causes before and after it moved, in words."""
        names = list(dict.fromkeys([*_ranked(self.before)[:1], *_ranked(self.after)[:2]]))
        said = [
            f"{one} {_percent(self.before, one)} to {_percent(self.after, one)}" for one in names
        ]
        return ", ".join(said)


@dataclass(frozen=True, kw_only=True)
class Open:
    """An experiment that was not made, and could be.

    Attributes:
        experiment: its name.
        question: what it asks.
        nats: what it is expected to tell of the cause.
        num_steps: about how many steps it trains.
    """

    experiment: str
    question: str
    nats: float
    num_steps: int


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """What experiments have made of a diagnosis.

    Attributes:
        before: the diagnosis without them.
        after: with them.
        told: what came of each, in order.
        still_open: what could still be made, the most telling for its steps first.
        is_settled: whether the likeliest cause has at least 90 %, and is not `unknown`.
        why: it ended, in words.
        num_steps: steps trained in all.
        exact: whether the replayed steps before the onset were the run's, bit by bit; None
            where nobody looked, or nothing is known.
        window_steps: steps of the window.
    """

    before: Diagnosis
    after: Diagnosis
    told: tuple[Told, ...]
    still_open: tuple[Open, ...]
    is_settled: bool
    why: str
    num_steps: int
    exact: bool | None
    window_steps: int

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        told = [
            {
                "experiment": one.experiment,
                "result": None if one.result is None else one.result.to_json(),
                "reason": one.reason,
                "before": dict(one.before),
                "after": dict(one.after),
            }
            for one in self.told
        ]
        return {
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "told": told,
            "open": [dataclasses.asdict(one) for one in self.still_open],
            "settled": self.is_settled,
            "why": self.why,
            "num_steps": self.num_steps,
            "exact": self.exact,
            "window_steps": self.window_steps,
        }


def settle(
    scene: Scene,
    diagnosed: Diagnose,
    causes: Iterable[Cause],
    *,
    experiments: Sequence[Experiment] | None = None,
    in_order: bool = False,
    is_spent: Callable[[], bool] = lambda: False,
    begin: Callable[[Experiment], object] = lambda _: None,
    tell: Callable[[Told], object] = lambda _: None,
) -> Settlement:
    """Run the most telling experiment for its steps, again and again, until the cause is settled.

    Where data is blamed (10 % or more, in all), PaLM's control comes before anything else, and
    where a replay had no trouble, whether a step gives the same bits twice. What an experiment is
    expected to tell is halved for each one like it that has told something. It ends when the
    likeliest cause has 90 % and no experiment is expected to tell 0.02 nats, when none is left, or
    when the budget is spent; one that is not finished by then tells nothing. Where only advisory
    alarms were raised nothing is run: no replay could tell.

    Args:
        scene: the incident.
        diagnosed: the diagnosis with results; see `by_case` and `by_diagnosis`.
        causes: whose tables say what an experiment is expected to tell.
        experiments: those that may be made; by default all.
        in_order: make them all, in this order, whatever they are expected to tell.
        is_spent: whether the budget is.
        begin: hears which experiment begins.
        tell: hears what came of it.

    Raises:
        SnapshotError: a state cannot be restored.
        ProgramError: the program's loss raises.
    """
    tables = {one.name: one.outcomes for one in causes}
    left = list(every_experiment() if experiments is None else experiments)
    results: list[Result] = []
    told: list[Told] = []
    first = now = diagnosed(results)
    scene.is_spent = is_spent
    refused: dict[str, str] = {}
    while True:
        if scene.is_advisory:
            why, left = _ONLY_ADVISORY, list[Experiment]()
            break
        if is_spent():
            why = "the budget is spent"
            break
        left = [one for one in left if not _is_refused(one, scene, refused)]
        chosen = next(iter(left), None) if in_order else next_of(left, results, now, tables)
        if chosen is None:
            why = _why_ended(left, now)
            break
        left.remove(chosen)
        begin(chosen)
        before = _shares(now)
        result, reason = _run(chosen, scene)
        if result is not None:
            results.append(result)
            now = diagnosed(results)
        told.append(
            Told(
                experiment=chosen.name,
                result=result,
                reason=reason,
                before=before,
                after=_shares(now),
            )
        )
        tell(told[-1])
    shares = _shares(now)
    told += [
        Told(experiment=name, reason=reason, before=shares, after=shares)
        for name, reason in refused.items()
    ]
    return Settlement(
        before=first,
        after=now,
        told=tuple(told),
        still_open=_still_open(left, results, scene, now, tables),
        is_settled=_is_sure(now),
        why=why,
        num_steps=scene.steps_trained,
        exact=scene.exact,
        window_steps=len(scene.steps),
    )


def every_experiment() -> list[Experiment]:
    """Each that is found, with its defaults."""
    return [kind() for kind in members("experiments").values()]


def experiments_named(names: Sequence[str]) -> list[Experiment]:
    """Experiments by name.

    Raises:
        ConfigError: there is none of a name, or one is named twice.
    """
    known = members("experiments")
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no experiment {name!r}; there are {', '.join(known)}")
    if len(set(names)) != len(names):
        raise ConfigError(f"an experiment is named twice: {', '.join(names)}")
    return [make("experiments", name) for name in names]


def by_case(scene: Scene, recipe: Recipe, facts: Mapping[str, Any] | None = None) -> Diagnose:
    """Diagnose the scene's incident anew with every result; from what is stored where its
    readings are gone.

    Raises:
        ConfigError: the scene is of no run.
    """
    if scene.case is None:
        raise ConfigError("the scene is of no run: give its diagnosis")
    program = scene.replay.program
    case = scene.case.case(
        facts={
            "has_scaler": program.scaler is not None,
            "precision": program.precision,
            **(facts or {}),
        },
        batch_findings=scene.batch_findings(),
    )
    if not len(case.timeline):
        return by_diagnosis(scene.case.diagnosis, recipe.causes)
    return lambda results: diagnose(
        dataclasses.replace(case, results=tuple(results)), recipe.causes, recipe.symptoms
    )


def by_diagnosis(stored: Diagnosis, causes: Iterable[Cause]) -> Diagnose:
    """Weigh results on top of a stored diagnosis: all that can be done without its readings."""
    known = {one.name: one for one in causes}

    def diagnosed(results: Sequence[Result]) -> Diagnosis:
        case = Case(timeline=Timeline(()), alarms=(), results=tuple(results))
        odds: list[float] = []
        found: list[Candidate] = []
        for one in stored.candidates:
            cause = known.get(one.cause)
            facts = () if cause is None else tuple(cause.of_results(case))
            odds.append(math.log(max(one.probability, _FLOOR)) + sum(fact.weight for fact in facts))
            found.append(dataclasses.replace(one, evidence=(*one.evidence, *facts)))
        peak = max(odds)
        shares = [math.exp(one - peak) for one in odds]
        found = [
            dataclasses.replace(one, probability=share / sum(shares))
            for one, share in zip(found, shares, strict=True)
        ]
        found.sort(key=lambda one: (-one.probability, one.cause))
        return dataclasses.replace(stored, candidates=tuple(found))

    return diagnosed


def _run(experiment: Experiment, scene: Scene) -> tuple[Result | None, str]:
    begun = scene.steps_trained
    try:
        result = experiment.run(scene)
    except (NoResultError, BudgetSpentError) as error:
        return None, str(error)
    except (RuntimeError, TypeError) as error:  # of the program, computing in another way
        return None, f"the program cannot be trained so: {type(error).__name__}: {error}"[:_LONGEST]
    return dataclasses.replace(result, num_steps=scene.steps_trained - begun), ""


def _is_refused(experiment: Experiment, scene: Scene, refused: dict[str, str]) -> bool:
    if why := experiment.why_not(scene):
        refused[experiment.name] = why
    return bool(why)


def _why_ended(left: Sequence[Experiment], now: Diagnosis) -> str:
    if _is_sure(now):
        return f"{now.top.cause} is settled, and no experiment would change that"
    return "no experiment that is left would tell more" if left else "no experiment is left"


def _still_open(
    left: Sequence[Experiment],
    results: Sequence[Result],
    scene: Scene,
    now: Diagnosis,
    tables: Tables,
) -> tuple[Open, ...]:
    found = [
        Open(
            experiment=one.name,
            question=one.question,
            nats=expected_nats(one, results, now, tables),
            num_steps=math.ceil(one.windows * scene.num_steps),
        )
        for one in left
    ]
    return tuple(sorted(found, key=lambda one: (-one.nats / one.num_steps, one.experiment)))


def _is_sure(now: Diagnosis) -> bool:
    return now.top.probability >= ENOUGH and now.top.cause != "unknown"


def _shares(now: Diagnosis) -> dict[str, float]:
    return {one.cause: one.probability for one in now.candidates}


def _ranked(shares: Mapping[str, float]) -> list[str]:
    return sorted(shares, key=lambda name: (-shares[name], name))


def _percent(shares: Mapping[str, float], name: str) -> str:
    return f"{shares.get(name, 0.0):.0%}"
