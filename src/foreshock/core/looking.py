"""What looks at a case share: degrees, medians of few readings, and what is not finite."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.case import REFERENCE_STEPS, Case
from foreshock.core.names import GLOBAL, split_series
from foreshock.core.stats import usual_of

FEW: Final = 3
"""Readings whose median counts for one: no single outlier moves it. Our choice."""

LEAST: Final = 5
"""Finite values that a past needs, as in a case's jumps."""


def graded(value: float, no: float, yes: float) -> float:
    """0 at `no` and before it, 1 at `yes` and beyond, and linear between; NaN gives 0.

    `yes` may lie below `no`.

    >>> graded(5.0, 4.0, 8.0), graded(9.0, 4.0, 8.0), graded(0.25, 1.0, 0.0)
    (0.25, 1.0, 0.75)
    """
    if math.isnan(value):
        return 0.0
    if math.isinf(value):
        return float((value > 0) == (yes > no))
    return max(0.0, min(1.0, (value - no) / (yes - no)))


def graded_ratio(value: float, no: float, yes: float) -> float:
    """`graded` by logarithms, for factors above 0; of one at or below 0, as if it were tiny.

    >>> graded_ratio(2.0, 1.0, 4.0)
    0.5
    """
    logarithm = math.log(value) if value > 0 else -math.inf
    return graded(math.nan if math.isnan(value) else logarithm, math.log(no), math.log(yes))


@dataclass(frozen=True, kw_only=True)
class Past:
    """What was usual for a series: `usual_of` some of its values.

    Attributes:
        steps: `[T]` those that it is taken from.
        values: `[T]` what was measured then, all finite.
        median: of them.
        spread: their robust standard deviation.
    """

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    median: float
    spread: float

    def z(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Deviations above the median, of each value."""
        with np.errstate(all="ignore"):
            return (values - self.median) / self.spread

    def z_of(self, value: float) -> float:
        """The same of one value."""
        return float(self.z(np.array([value]))[0])

    def ratio(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Each value over the median; 1 where both are 0."""
        with np.errstate(all="ignore"):
            return np.where(values == self.median, 1.0, values / np.float64(self.median))


def past_of(
    case: Case,
    series: str,
    *,
    before: int | None = None,
    reach_steps: int = REFERENCE_STEPS,
    least: int = LEAST,
) -> Past | None:
    """What was usual for a series in the steps before the onset, or before another one.

    Args:
        case: whose timeline is read; only updates that were made count.
        series: of which.
        before: the first step that no longer counts; by default the onset.
        reach_steps: how far it goes back from there. More for what is seldom measured.
        least: finite values without which there is no past.
    """
    end = case.onset_step if before is None else before
    first, last = end - reach_steps, end - 1
    values = case.timeline.values(series, first, last, committed_only=True)
    steps = case.timeline.steps_of(series, first, last, committed_only=True)
    known = np.isfinite(values)
    values, steps = values[known], steps[known]
    if len(values) < max(1, least):
        return None
    median, spread = usual_of(values)
    if not math.isfinite(median):
        return None
    return Past(steps=steps, values=values, median=median, spread=spread)


def finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The finite ones of `[T]`."""
    return values[np.isfinite(values)]


def medians_of_few(values: NDArray[np.float64], width: int = FEW) -> NDArray[np.float64]:
    """The median of each `width` neighbours of `[T]`, `[T - width + 1]`; of fewer the one.

    >>> medians_of_few(np.array([1.0, 9.0, 2.0, 3.0])).tolist()
    [2.0, 3.0]
    """
    if len(values) == 0:
        return values
    width = min(width, len(values))
    return np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)


def scopes_of(case: Case, signal: str, *, whole: bool = True) -> Iterator[str]:
    """The series of a signal that the case's timeline has, of the whole run and of each part."""
    for series in case.timeline.series:
        name, scope = split_series(series)
        if name == signal and (whole or scope != GLOBAL):
            yield series


def first_broken(case: Case, series: str) -> int | None:
    """The first step since the onset at which a series was NaN or Inf; None if it was not.

    In a table of fp64 a NaN may stand for no reading at all: there, it counts only from an
    alarm on it on. A gradient that overflowed in a step whose update was skipped is the loss
    scaler's daily work: it counts only where it raised an alarm.
    """
    alarmed = [
        alarm.onset_step
        for alarm in case.alarms
        if alarm.series == series and not math.isfinite(alarm.value)
    ]
    line, first = case.timeline, case.onset_step
    values = line.values(series, first, None)
    steps = line.steps_of(series, first, None)
    made = np.isin(steps, line.steps_of(series, first, None, committed_only=True))
    broken = np.isinf(values) if line.table.dtype == np.float64 else ~np.isfinite(values)
    if not series.startswith("loss/"):
        broken &= made
    if alarmed:
        broken |= ~np.isfinite(values) & (steps >= min(alarmed))
    found = [*steps[broken].tolist(), *(one for one in alarmed if len(line) == 0)]
    return min(found, default=None)
