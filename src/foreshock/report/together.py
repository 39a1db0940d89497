"""Whether several runs broke at the same steps, and whether that could be chance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np

TOLERANCE_STEPS: Final = 5
"""Onsets this far apart count as the same step; at least twice the logging interval. Our
choice: the same batch moves two models within a few steps."""

UNLIKELY: Final = 0.01
"""Probability of so many coincidences by chance below which they are believed."""


class Place(NamedTuple):
    """An onset: in which run, at which step."""

    run: int
    step: int


class Extent(NamedTuple):
    """Over which steps a run goes, and how far its logged steps lie apart."""

    first: int
    last: int
    spacing: int


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """A step at which several runs broke, and which ones."""

    step: int
    runs: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        return {"step": self.step, "runs": list(self.runs)}


@dataclass(frozen=True, kw_only=True)
class Together:
    """The steps that several runs share.

    Attributes:
        meetings: in order.
        num_runs: runs that broke at all.
        tolerance_steps: onsets at most this far apart count as the same step.
        expected_pairs, num_pairs: pairs of onsets of different runs that lie so close: by
            chance, if each run's onsets were spread evenly over its length, and counted.
        chance: probability of as many by chance (Poisson).
    """

    meetings: tuple[Meeting, ...]
    num_runs: int
    tolerance_steps: int
    expected_pairs: float
    num_pairs: int
    chance: float

    @property
    def believed(self) -> bool:
        """Whether chance is no explanation."""
        return bool(self.meetings) and self.chance < UNLIKELY

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        return {
            **{name: value for name, value in vars(self).items() if name != "meetings"},
            "meetings": [one.to_json() for one in self.meetings],
            "believed": self.believed,
        }


def together(
    places: Sequence[Place], extents: Sequence[Extent | None], names: Sequence[str]
) -> Together:
    """Find the steps at which several runs broke.

    Args:
        places: every onset.
        extents: of each run; None where it logged nothing.
        names: of each run.
    """
    ordered = sorted(set(places), key=lambda one: (one.step, one.run))
    runs = sorted({one.run for one in ordered})
    known = {run: extent for run in runs if (extent := extents[run]) is not None}
    spacing = max((extent.spacing for extent in known.values()), default=1)
    tolerance = max(TOLERANCE_STEPS, 2 * spacing)
    meetings: list[Meeting] = []
    group: list[Place] = []
    for place in [*ordered, None]:
        if group and (place is None or place.step - group[0].step > tolerance):
            met = sorted({one.run for one in group})
            if len(met) > 1:
                step = int(np.median([one.step for one in group]))
                meetings.append(Meeting(step=step, runs=tuple(names[run] for run in met)))
            group = []
        if place is not None:
            group.append(place)
    counts = {run: sum(one.run == run for one in ordered) for run in known}
    expected = 0.0
    for one, other in combinations(known, 2):
        length = max(known[run].last - known[run].first + 1 for run in (one, other))
        share = min(1.0, (2 * tolerance + spacing) / length)
        expected += counts[one] * counts[other] * share
    num_pairs = _close(ordered, tolerance)
    return Together(
        meetings=tuple(meetings),
        num_runs=len(runs),
        tolerance_steps=tolerance,
        expected_pairs=expected,
        num_pairs=num_pairs,
        chance=at_least(num_pairs, expected),
    )


def at_least(number: int, expected: float) -> float:
    """Probability that a Poisson variable of this mean reaches a number.

    >>> at_least(0, 3.0), round(at_least(1, 0.1), 4), round(at_least(2, 2.0), 4)
    (1.0, 0.0952, 0.594)
    """
    if number <= 0:
        return 1.0
    if expected <= 0:
        return 0.0
    below = np.arange(number)
    logs = -expected + below * math.log(expected)
    logs[1:] -= np.cumsum(np.log(below[1:]))
    return float(min(1.0, max(0.0, 1.0 - np.exp(logs).sum())))


def _close(ordered: Sequence[Place], tolerance: int) -> int:
    """Pairs of onsets of different runs within the tolerance."""

    def pairs(steps: Sequence[int]) -> int:
        at = np.array(steps, np.int64)
        reach = np.searchsorted(at, at + tolerance, side="right")
        return int((reach - np.arange(len(at)) - 1).sum())

    every = pairs([one.step for one in ordered])
    within = sum(
        pairs([one.step for one in ordered if one.run == run]) for run in {o.run for o in ordered}
    )
    return every - within
