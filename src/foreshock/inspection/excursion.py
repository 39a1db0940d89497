"""An excursion of one signal, looking from both sides: where it began, how high, how long."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshock.core.log import Floats
from foreshock.core.stats import MAD_TO_SD
from foreshock.inspection.trace import Trace

_PAST = 50
"""Readings before an excursion that define its range."""
_FEW = 5
_ONSET_SDS = 3.0
_BACK = 3
"""Readings in a row that must be back in range. Two could be chance in a noisy series."""
_REACH = 100
_AFTER = 20


@dataclass(frozen=True, kw_only=True)
class Range:
    """Where a signal should be: a level and how far it strays, on its own scale.

    Attributes:
        level: of the readings next to the excursion.
        spread: robust standard deviation, never below a share of the level.
        slope: change of the level a reading.
        num_readings: that it was learned from.
    """

    level: float
    spread: float
    slope: float
    num_readings: int

    @property
    def limit(self) -> float:
        """The value above which a reading is out of range."""
        return self.level + _ONSET_SDS * self.spread


@dataclass(frozen=True, kw_only=True)
class Excursion:
    """Readings `start` to `end` (excluded; None while open) of a trace are out of range.

    `height` is in spreads, `width` in readings; `after_effect` is how far the readings
    after it stand above what the trend promised, in the trace's unit (of logarithms for a
    logarithmic one); NaN if there are too few.
    """

    start: int
    peak: int
    end: int | None
    range: Range
    height: float
    width: int
    after_effect: float = math.nan

    @property
    def is_open(self) -> bool:
        """Whether it lasts to the end of the log."""
        return self.end is None


class Terrain:
    """A trace on the scale on which it is judged, with what is known to be out of range.

    Norms are multiplicative and judged by their logarithm; losses as they are.

    Args:
        trace: the signal.
        logarithmic: whether to judge ratios.
        floor: smallest spread as a share of the level (of a ratio, if logarithmic): how far
            a signal may stray that nothing else is known of.
    """

    def __init__(self, trace: Trace, *, logarithmic: bool, floor: float) -> None:
        self.trace = trace
        self.logarithmic = logarithmic
        self._floor = floor
        values = trace.values
        if logarithmic:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log(np.where(values > 0, values, np.nan))
        self.values: Floats = np.where(np.isposinf(trace.values), np.inf, values)
        self.calm: NDArray[np.bool_] = np.isfinite(self.values)

    def mark(self, places: "NDArray[np.int64]") -> None:
        """Readings that alarmed say nothing about the range."""
        self.calm[places] = False

    def range_before(self, place: int, *, both_sides: bool = False) -> Range | None:
        """The range that the calm readings before a place define; None of no reading.

        Args:
            both_sides: take in the calm readings after it too, if there are few before.
        """
        past = self._calm(max(0, place - 4 * _PAST), place)[-_PAST:]
        if len(past) < _FEW and both_sides:
            later = self._calm(place, len(self.values))
            lower = later[self.values[later] <= self._low(past, later)]
            past = np.concatenate((past, lower[:_PAST]))
        if len(past) == 0:
            return None
        return self._range(self.values[past])

    def around(self, seed: int, last_seed: int, *, both_sides: bool = False) -> Excursion | None:
        """The excursion that readings `seed` to `last_seed` belong to; None if they are in
        range after all."""
        known = self.range_before(seed, both_sides=both_sides)
        if known is None:
            return None
        limit = known.limit
        above = ~(self.values <= limit)  # NaN counts as out of range
        start = seed
        while start > 0 and seed - start < _REACH and above[start - 1]:
            start -= 1
        if not above[seed : last_seed + 1].any():
            return None
        while not above[start]:
            start += 1
        end = self._back(above, last_seed)
        stop = len(self.values) if end is None else end
        stretch = self.values[start:stop]
        seen = np.where(np.isnan(stretch), -np.inf, stretch)
        peak = start + int(np.argmax(seen))
        height = (float(self.values[peak]) - known.level) / known.spread
        return Excursion(
            start=start,
            peak=peak,
            end=end,
            range=known,
            height=height,
            width=int(above[start:stop].sum()),
            after_effect=self._after(known, start, end),
        )

    def _back(self, above: "NDArray[np.bool_]", last_seed: int) -> int | None:
        """The first of three readings back in range; at the end of a log fewer will do."""
        inside = ~above
        rest = inside[last_seed + 1 :]
        if not len(rest):
            return None
        runs = rest.copy()
        for ahead in range(1, _BACK):
            runs[:-ahead] &= rest[ahead:]
        # The last two readings have fewer after them: in range to the end is enough.
        found = np.flatnonzero(runs)
        return last_seed + 1 + int(found[0]) if len(found) else None

    def _after(self, known: Range, start: int, end: int | None) -> float:
        if end is None:
            return math.nan
        later = self._calm(end, min(len(self.values), end + 2 * _AFTER))[:_AFTER]
        if len(later) < _FEW:
            return math.nan
        ahead = float(np.median(later)) - start
        promised = known.level + min(0.0, known.slope) * ahead
        return float(np.median(self.values[later])) - max(promised, known.level - known.spread)

    def _calm(self, low: int, high: int) -> "NDArray[np.int64]":
        return low + np.flatnonzero(self.calm[low:high])

    def _low(self, past: "NDArray[np.int64]", later: "NDArray[np.int64]") -> float:
        """Later readings up to this belong to the range too: what the few before allow."""
        if len(past):
            level = float(np.median(self.values[past]))
        elif len(later):
            level = float(np.quantile(self.values[later], 0.25))
        else:
            return math.nan
        return level + 2 * self._least(level)

    def _range(self, values: Floats) -> Range:
        near = values[-20:]
        level = float(np.median(near))
        slope = 0.0
        if len(values) >= 10:
            half = len(values) // 2
            slope = float(np.median(values[half:]) - np.median(values[:half])) / half
        flat = values - slope * (np.arange(len(values)) - len(values) + 1)
        if len(values) >= _FEW:
            spread = MAD_TO_SD * float(np.median(np.abs(flat - np.median(flat))))
        else:
            spread = float(np.ptp(values)) / 2
        return Range(
            level=level,
            spread=max(spread, self._least(level), 1e-12),
            slope=slope,
            num_readings=len(values),
        )

    def _least(self, level: float) -> float:
        return self._floor if self.logarithmic else self._floor * abs(level)


def clusters(places: "NDArray[np.int64]", gap: int) -> list[tuple[int, int]]:
    """First and last of each group of places that lie at most `gap` apart.

    >>> clusters(np.array([3, 4, 9, 30]), 5)
    [(3, 9), (30, 30)]
    """
    if len(places) == 0:
        return []
    cuts = np.flatnonzero(np.diff(places) > gap)
    firsts = places[np.concatenate(([0], cuts + 1))]
    lasts = places[np.concatenate((cuts, [len(places) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
