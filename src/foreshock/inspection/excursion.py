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
FEW = 10
"""Readings that a spread is learned from; fewer tell a level only."""

_ONSET_SDS, _SEED_SDS = 3.0, 6.0
_BACK = 3
"""Readings in a row that must be back in range. Two could be chance in a noisy series."""
_REACH = 100
_PIECE = 256
_AFTER, _AFTER_LEAST = 20, 5
_STRETCHES = ((50, 1.0), (20, 1.1), (10, 1.3))
"""Readings that a range is learned from, and what makes up for a small number."""

_STRAIGHTER = 0.5

_FEW_BACK = 0.1
"""Share of its height at which an excursion counts as over where nothing is known of noise."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Where a signal should be: a level and how far it strays, on its own scale.

    Attributes:
        level: of the readings next to the excursion; of fewer than ten, the lowest (the
            median, if logarithmic).
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

    `height` is in spreads; `width` counts the readings in a row, the peak among them, above a
    quarter of the height: the tail of a one-step outlier in a running mean is no width.
    `after_effect` is how far the readings
    after it stand above what the trend promised, in the trace's unit (of logarithms for a
    logarithmic one); NaN if there are too few. `low` is what readings must be above to count
    for the width.
    """

    start: int
    peak: int
    end: int | None
    range: Range
    height: float
    width: int
    after_effect: float = math.nan
    low: float = math.nan

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

    def range_before(self, place: int, *, lowest: bool = False) -> Range | None:
        """The range that the calm readings before a place define; None of no reading.

        Args:
            lowest: of few readings the lowest tells the level, not their median.
        """
        past = self._calm(max(0, place - 4 * _PAST), place)[-_PAST:]
        return self._range(self.values[past], lowest) if len(past) else None

    def around(self, seed: int, last_seed: int, *, short: bool = False) -> Excursion | None:
        """The excursion that readings `seed` to `last_seed` belong to; None if they are in
        range after all.

        Args:
            short: of a short log, in which one reading in range may part the first move from
                what follows; in a long one that would often be another outlier.
        """
        known = self.range_before(seed)
        if known is None:
            return None
        limit = known.limit
        low = max(0, seed - _REACH - 2)
        above = ~(self.values[low : last_seed + 1] <= limit)  # NaN counts as out of range
        if not above[seed - low :].any():
            return None
        start = low + _first(above, seed - low, short=short)
        if known.num_readings < FEW:
            top = float(np.max(self.values[start : last_seed + 1]))
            limit = max(limit, known.level + _FEW_BACK * (top - known.level))
        end = self._back(limit, last_seed)
        stop = len(self.values) if end is None else end
        stretch = self.values[start:stop]
        seen = np.where(np.isnan(stretch), -np.inf, stretch)
        peak = start + int(np.argmax(seen))
        if known.num_readings < FEW and self._within_noise(start, stop, peak):
            return None
        height = (float(self.values[peak]) - known.level) / known.spread
        low = self._low(known, start, stop, peak)
        return Excursion(
            start=start,
            peak=peak,
            end=end,
            range=known,
            height=height,
            width=_width(self.values[start:stop], peak - start, low),
            low=low,
            after_effect=self._after(known, start, end),
        )

    def _back(self, limit: float, last_seed: int) -> int | None:
        """The first of three readings back in range; at the end of a log fewer will do."""
        size = _PIECE
        place = last_seed + 1
        while place < len(self.values):
            piece = self.values[place : place + size + _BACK - 1] <= limit
            runs = piece.copy()
            for ahead in range(1, _BACK):
                runs[:-ahead] &= piece[ahead:]
            if place + size < len(self.values):
                runs = runs[:size]
            found = np.flatnonzero(runs)
            if len(found):
                return place + int(found[0])
            place, size = place + size, 2 * size
        return None

    def _after(self, known: Range, start: int, end: int | None) -> float:
        if end is None:
            return math.nan
        later = self._calm(end, min(len(self.values), end + 2 * _AFTER))[:_AFTER]
        if len(later) < _AFTER_LEAST:
            return math.nan
        ahead = float(np.median(later)) - start
        promised = known.level + min(0.0, known.slope) * ahead
        return float(np.median(self.values[later])) - max(promised, known.level - known.spread)

    def _within_noise(self, start: int, stop: int, peak: int) -> bool:
        """Whether the calm readings before and after vary so much that the peak is none.

        Few readings before say little of the noise; those after it are asked as well.
        """
        calm = np.concatenate((self._calm(0, start), self._calm(stop, len(self.values))))
        if len(calm) < FEW // 2:
            return False
        around = self.values[calm]
        spread = _spread_of_rises(around)
        before = self.values[self._calm(0, start)]
        level = max(float(np.median(around)), float(np.median(before)) if len(before) else -np.inf)
        return float(self.values[peak]) <= level + _SEED_SDS * spread

    def _low(self, known: Range, start: int, stop: int, peak: int) -> float:
        """What readings of an excursion must be above to count for its width: a quarter of
        its height, and out of range; where few came before, out of that of those after too."""
        top = self.values[peak] if np.isfinite(self.values[peak]) else known.limit
        low = max(known.limit, known.level + (top - known.level) / 4)
        after = self.values[self._calm(stop, stop + _PAST)]
        if known.num_readings >= FEW or len(after) < FEW:
            return float(low)
        spread = _spread_of_rises(after)
        return float(max(low, np.median(after) + _ONSET_SDS * spread))

    def _calm(self, low: int, high: int) -> "NDArray[np.int64]":
        return low + np.flatnonzero(self.calm[low:high])

    def _range(self, values: Floats, lowest: bool) -> Range:
        """The range of calm readings, extrapolated to the next one along a falling trend.

        The last 50 count, or the last 20 or 10 if they stray less than half as much: a young
        loss falls in a curve, whose bend is no noise.
        """
        if len(values) < FEW:
            median = self.logarithmic and not lowest
            level = float(np.median(values) if median else values.min())
            spread = slope = 0.0
        else:
            fits = [_fit(values[-size:], more) for size, more in _STRETCHES if size <= len(values)]
            level, spread, slope = fits[0]
            for fit in fits[1:]:
                if fit[1] < _STRAIGHTER * spread:
                    level, spread, slope = fit
        return Range(
            level=level,
            spread=max(spread, self._least(level), 1e-12),
            slope=slope,
            num_readings=len(values),
        )

    def _least(self, level: float) -> float:
        return self._floor if self.logarithmic else self._floor * abs(level)


def _spread_of_rises(values: Floats) -> float:
    """How much readings stray from one to the next, learned from those that go up (of few the
    highest): a steep fall is a trend, and no noise."""
    steps = np.diff(values)
    rises = steps[steps > 0]
    if not len(rises):
        return 0.0
    usual = np.median(rises) if 4 * len(rises) >= len(steps) else rises.max()
    return MAD_TO_SD * float(usual) / math.sqrt(2)


def _first(above: "NDArray[np.bool_]", seed: int, *, short: bool) -> int:
    """Where the readings out of range around a seed begin."""
    start = seed
    while start > 0:
        if above[start - 1]:
            start -= 1
        elif short and start > 2 and above[start - 2] and not above[: start - 2].all():
            start -= 2
        else:
            break
    while not above[start]:
        start += 1
    return start


def _width(values: Floats, peak: int, low: float) -> int:
    """Readings in a row around the peak that are above a value."""
    above = ~(values <= low)
    left = int(np.argmin(above[peak::-1])) if not above[peak::-1].all() else peak + 1
    right = int(np.argmin(above[peak:])) if not above[peak:].all() else len(values) - peak
    return max(1, left + right - 1)


def _fit(values: Floats, correction: float) -> tuple[float, float, float]:
    """Level at the end of a falling or level stretch, robust spread around it, and slope."""
    slope = 0.0
    if len(values) >= FEW:
        half = len(values) // 2
        slope = min(0.0, float(np.median(values[half:]) - np.median(values[:half])) / half)
    flat = values - slope * (np.arange(len(values)) - len(values))
    level = max(float(np.median(flat)), float(values.min()))
    return level, correction * MAD_TO_SD * float(np.median(np.abs(flat - level))), slope


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
