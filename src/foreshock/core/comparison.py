"""Before against after: paired differences, their noise, and a verdict for each capability."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError
from foreshock.core.reading import json_number
from foreshock.core.student import MIN_BOOTSTRAP_ITEMS, student_quantile, studentised_quantiles

Measured = Mapping[str, Sequence[float]]
"""Values by capability, one per item, lower is better."""

FAMILY_ERROR: Final = 0.001
"""Probability that a healthy pair is called worse, over all its capabilities."""
PRIOR_NEIGHBOURS: Final = 6
"""Movements that the prior on their spread is worth. Our choice: six real ones weigh as much."""
TAIL_FREEDOM: Final = 5
"""Degrees of freedom of the t whose quantile bounds a movement. Our choice: movements as
heavy-tailed as t of 4 stayed within the family's error; a normal's bound is under half of it."""
PRIOR_RATIO: Final = 0.5
"""The prior: movement of the mean, as a share of the spread of the items' movements. Our
choice: on a small GPT it was 0.2 to 0.5 of it (docs/verify.md)."""
_LARGEST: Final = 1e150
"""A value beyond this is judged as one that is not finite: what is squared must stay in fp64."""
_POWER: Final = 0.9


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One capability before and after.

    Attributes:
        probe: the capability.
        before: mean before.
        after: mean after.
        difference: mean of the paired differences, after minus before.
        low: lower end of the interval of that mean; all intervals of a comparison hold at once.
        high: its upper end.
        movement: how far healthy training alone may move the mean up.
        tolerance: how much worse still counts as noise: the movement and the interval's half.
        detectable: the smallest true fall that is found in nine cases of ten.
        num_items: items measured.
        passed: whether the difference stays within the tolerance; never if one is not finite or
            beyond 1e150.
    """

    probe: str
    before: float
    after: float
    difference: float
    low: float
    high: float
    movement: float
    tolerance: float
    detectable: float
    num_items: int
    passed: bool

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        numbers = ("before", "after", "difference", "low", "high", "movement", "tolerance")
        figures = {name: json_number(getattr(self, name)) for name in (*numbers, "detectable")}
        counted = {"num_items": self.num_items, "passed": self.passed}
        return {"probe": self.probe, **figures, **counted}


def compare(
    before: Measured,
    after: Measured,
    neighbours: Sequence[Measured] = (),
    *,
    growth: float = 1.0,
    adjoining: bool = True,
    family_error: float = FAMILY_ERROR,
) -> list[Comparison]:
    """Compare capabilities before and after, beyond noise.

    A capability is worse if and only if the lower end of its interval lies above what healthy
    training alone moves it. `family_error` is shared out: half to the intervals and half to the
    movements, each over all capabilities by Bonferroni, stepped down by Holm: once a capability
    is worse, the others are judged as a smaller family.

    The interval is that of the mean of the paired differences. Each of its ends is the wider
    one of Student's t, which skew deceives, and the studentised bootstrap, which is coarse; with
    fewer than 8 items it is Student's t alone. A capability of one item has no interval.

    The movement is a quantile of t with 5 degrees of freedom, since movements are heavy-tailed,
    times the deviation of the movements of the mean from one neighbour to the next (and from the
    last to `before`), about their mean where that falls: getting better is no noise. A few
    neighbours may lie close together by chance: their deviation is weighed with a prior worth 6
    of them, which says half the spread of the items' movements, unless theirs is the larger;
    where it is above the whole spread, they alone count, with as many degrees of freedom as they
    give, 5 at most. Without neighbours the movement is not known and taken as none: any
    difference beyond the interval is then called worse.

    Args:
        before: measured at the healthy snapshot.
        after: measured now.
        neighbours: measured at healthy states before `before`, oldest first. Two are few: six
            weigh as much as the prior.
        growth: how many times further than one neighbour from the next `after` is from
            `before`, in what training may move: the root of the ratio of steps.
        adjoining: whether the last neighbour is followed by `before`. Where they are healthy
            states of another time, their movements are counted among themselves alone.
        family_error: over all capabilities of a healthy pair.

    Raises:
        ConfigError: a capability is missing in `after`, or has another number of items there;
            `growth` or `family_error` is not allowed.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure"; Smyth 2004,
    "Linear models and empirical Bayes methods", for the moderated spread.

    >>> one = compare({"p": [1.0, 2.0]}, {"p": [1.0, 2.0]})[0]
    >>> one.passed, one.difference
    (True, 0.0)
    >>> compare({"p": [1.0, 2.0]}, {"p": [float("nan"), 2.0]})[0].passed
    False
    """
    if not 0 < family_error < 1 or not 0 < growth < math.inf:
        raise ConfigError(
            f"compare got growth={growth}, family_error={family_error}; growth must be above 0, "
            "family_error in (0, 1)"
        )
    pairs = {name: _paired(name, before, after) for name in before}
    drifts = _drifts(before, (*neighbours, before) if adjoining else neighbours)
    open_ones, found = list(pairs), dict[str, Comparison]()
    while open_ones:
        tail = family_error / len(open_ones)
        tail = tail / 2 if drifts else tail
        judged = {
            name: _judge(name, before, after, pairs[name], drifts.get(name), tail, growth)
            for name in open_ones
        }
        worse = [name for name, one in judged.items() if not one.passed]
        if not worse:
            found |= judged
            break
        found |= {name: judged[name] for name in worse}
        open_ones = [name for name in open_ones if name not in found]
    return [found[name] for name in before]


def growth_of(before_step: int, after_step: int, neighbour_steps: Sequence[int]) -> float:
    """How many times further apart two states are than neighbours, as a random walk goes.

    The root of the ratio of steps, 1 at least; 1 too without neighbours.

    Args:
        before_step: step of the state compared with.
        after_step: step of the state in question.
        neighbour_steps: steps of the healthy states before `before_step`, oldest first.

    >>> growth_of(100, 200, [80, 90])
    3.1622776601683795
    >>> growth_of(100, 104, [80, 90]), growth_of(100, 200, [])
    (1.0, 1.0)
    """
    if not neighbour_steps or before_step <= neighbour_steps[0]:
        return 1.0
    spacing = (before_step - neighbour_steps[0]) / len(neighbour_steps)
    return math.sqrt(max(1.0, (after_step - before_step) / spacing))


@dataclass(frozen=True)
class _Drift:
    """Movements between neighbours: their moderated standard deviation."""

    deviation: float
    freedom: int


def _paired(name: str, before: Measured, after: Measured) -> NDArray[np.float64]:
    count, known = len(after.get(name, ())), len(before[name])
    if count != known or not count:
        raise ConfigError(
            f"probe {name!r} has {known} items before and {count} after; it must measure "
            "the same items, one at least"
        )
    return _values(after[name]) - _values(before[name])


def _values(row: Sequence[float]) -> NDArray[np.float64]:
    """As measured; NaN, which is never whole, for what is not finite or too large to square."""
    values = np.asarray(row, dtype=float)
    return np.where(np.abs(values) < _LARGEST, values, np.nan)


def _drifts(before: Measured, healthy: Sequence[Measured]) -> dict[str, _Drift]:
    """The moderated movement of each capability from one healthy state to the next."""
    squares: dict[str, list[float]] = {}
    spreads: dict[str, float] = {}
    counted: dict[str, int] = {}
    for name, old in before.items():
        rows = [measured.get(name, ()) for measured in healthy]
        whole = [
            row for row in map(_values, rows) if len(row) == len(old) and np.isfinite(row).all()
        ]
        moves = [new - last for last, new in pairwise(whole)]
        if moves:
            means = [float(move.mean()) for move in moves]
            trend = min(0.0, sum(means) / len(means))  # getting better is no noise
            squares[name] = [(mean - trend) ** 2 for mean in means]
            counted[name] = len(means) - (trend < 0)
            spread = [float(move.var(ddof=1)) if len(old) > 1 else 0.0 for move in moves]
            spreads[name] = float(np.mean(spread))
    found: dict[str, _Drift] = {}
    for name, own in squares.items():
        known = counted[name]
        variance = sum(own) / known if known else 0.0
        weighed = PRIOR_NEIGHBOURS * PRIOR_RATIO**2 * spreads[name] + sum(own)
        weighed /= PRIOR_NEIGHBOURS + known
        if 0 < spreads[name] >= variance:
            found[name] = _Drift(math.sqrt(max(weighed, variance)), TAIL_FREEDOM)
        else:  # the prior has nothing to say, or is contradicted
            found[name] = _Drift(math.sqrt(variance), max(1, min(known, TAIL_FREEDOM)))
    return found


def _judge(  # noqa: PLR0917 - all that one verdict depends on
    name: str,
    before: Measured,
    after: Measured,
    pair: NDArray[np.float64],
    drift: _Drift | None,
    tail: float,
    growth: float,
) -> Comparison:
    count, finite = len(pair), bool(np.isfinite(pair).all())
    difference = float(pair.mean())
    error = float(pair.std(ddof=1)) / math.sqrt(count) if count > 1 and finite else 0.0
    below, above = _half_widths(pair, error, tail) if error > 0 else (0.0, 0.0)
    movement = power = 0.0
    if drift is not None:
        movement = growth * drift.deviation * student_quantile(tail, drift.freedom)
        power = growth * drift.deviation
    tolerance = movement + below
    reached = NormalDist().inv_cdf(_POWER) * math.hypot(error, power)
    return Comparison(
        probe=name,
        before=float(np.mean(before[name])),
        after=float(np.mean(after[name])),
        difference=difference,
        low=difference - below,
        high=difference + above,
        movement=movement,
        tolerance=tolerance,
        detectable=tolerance + reached,
        num_items=count,
        passed=finite and difference <= tolerance,
    )


def _half_widths(pair: NDArray[np.float64], error: float, tail: float) -> tuple[float, float]:
    """How far the interval reaches below and above the mean."""
    count = len(pair)
    low = high = student_quantile(min(tail, 0.5), count - 1)
    if count >= MIN_BOOTSTRAP_ITEMS:
        # The end below the mean comes from resamples that overshoot it, and the other way round.
        under, over = studentised_quantiles(pair, min(tail, 0.5), seed=count)
        low, high = max(low, over), max(high, -under)
    return low * error, high * error
