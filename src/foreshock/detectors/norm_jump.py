"""Alarm on a weight norm that jumps by more than updates move it."""

import math
import sys
from dataclasses import dataclass, field
from typing import ClassVar

from foreshock.core.detector import (
    ONSET_REACH_STEPS,
    Alarm,
    AlarmKind,
    Column,
    ScalarDetector,
    Threshold,
)

_LARGEST = sys.float_info.max


@dataclass(slots=True)
class NormColumn(Column):
    """Memory of the jump rule for one series.

    Attributes:
        last: the last value that was not flagged, None before the first.
        last_step: its step.
        changes: by how much each of the last values differed from the one before it.
    """

    last: float | None = None
    last_step: int = 0
    changes: list[float] = field(default_factory=list[float])


@dataclass(frozen=True, kw_only=True)
class NormJump(ScalarDetector[NormColumn]):
    """Alarm when a weight norm rises to `ratio` times what it was, or falls to a part of it.

    `| ||w'|| - ||w|| | <= ||w' - w||`: between two readings a norm moves by no more than the
    updates moved the weights, and an update is bounded by the learning rate, whatever the data.
    Adam moves a weight by at most `lr max(1, (1 - b1) / sqrt(1 - b2))`, 3.2 times the rate with
    usual settings, so that at a rate of 3e-4 ten steps in one direction at this bound come
    to half the norm of weights of RMS 0.02. With m the last value and d the largest of the last
    `window_steps` changes between two values, alarm at a value above
    `max(ratio m, m + times d)`, or below `min(m / ratio, m - times d)`. Every further value out
    of this range alarms too. The onset is the step after that of m: what happened since m was
    measured is not known any better.

    It sees a weight that became huge, such as one whose highest exponent bit was flipped, even
    where no token of the data meets it, and a group that was lost or set anew. It is not
    meant for what changes a norm by less: a flip of a lower exponent bit leaves a weight
    below 2. What happens to a weight that was not measured, one not trained or, where a signal
    samples, not in the sample, is not seen.

    Args:
        ratio: 2. Lower sees smaller damage; below 1.5, a few updates far too large do it.
        times: 10. Groups that begin at zero multiply their norm in the first readings, with
            changes that grow by degrees, and so does any at a rate that is warmed up.
        window_steps: 20 changes.
        warmup_steps: 10 finite values.
        rebaseline_after_steps: 10 flagged values in a row; then the level is accepted and
            reported once as a shift.

    NaN and Inf are left to `nonfinite` and change nothing. A last value of zero or below cannot
    be watched by a ratio; the next one is then taken as it is. Needs no reduction: ranks that
    have the same norms raise the same alarms.

    Raises:
        ConfigError: a setting is out of its range.

    >>> import numpy as np
    >>> rule = NormJump(warmup_steps=3)
    >>> values = np.array([[10.0], [10.1], [10.2], [10.3], [22.0], [22.1], [10.5], [3.0]])
    >>> _, alarms = rule.update(rule.init(["param_norm/embed"]), 10 * np.arange(8), values)
    >>> [(alarm.step, alarm.onset_step, round(alarm.threshold, 2)) for alarm in alarms]
    [(40, 31, 20.6), (50, 31, 20.6), (70, 61, 5.25)]

    Reference: the bound on Adam's update: Kingma and Ba 2015, 2.1. The numbers are our choice.
    """

    name: ClassVar[str] = "norm_jump"
    watches: tuple[str, ...] = ("param_norm",)
    every_scope: bool = True
    ratio: float = 2.0
    times: float = 10.0
    window_steps: int = 20
    warmup_steps: int = 10
    rebaseline_after_steps: int = 10

    def __post_init__(self) -> None:
        self.require_at_least(1, "window_steps", "rebaseline_after_steps")
        self.require_at_least(2, "warmup_steps")
        self.require_positive("times")
        self.require_above_one("ratio")

    def start(self, series: str) -> NormColumn:
        return NormColumn(series)

    def see(self, column: NormColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        low, high = self._range(column)
        if column.last is None or not (value > high or value < low):
            return self._accept(column, step, value)
        if column.excursion_start is None:
            column.excursion_start = column.last_step + 1
        column.flagged.append(value)
        persists = len(column.flagged) >= self.rebaseline_after_steps
        alarm = Alarm(
            kind=AlarmKind.SHIFT if persists else AlarmKind.DISCONTINUITY,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=max(column.excursion_start, step - ONSET_REACH_STEPS),
            value=value,
            baseline=column.last,
            threshold=high if value > high else low,
        )
        if persists:
            column.last = None  # its distance from before is no change of the ordinary kind
            self._accept(column, step, value)
        return alarm

    def threshold(self, column: NormColumn) -> Threshold:
        missing = self._missing(column)
        if missing or column.last is None:
            return Threshold(math.nan, math.nan, max(missing, 1))
        return Threshold(column.last, self._range(column)[1], 0)

    def _missing(self, column: NormColumn) -> int:
        """Values that are needed before it watches."""
        seen = 0 if column.last is None else 1 + len(column.changes)
        return max(0, self._needed - seen)

    @property
    def _needed(self) -> int:
        return min(self.warmup_steps, self.window_steps + 1)

    def _range(self, column: NormColumn) -> tuple[float, float]:
        """Between what a value is in range."""
        last = column.last
        if last is None or last <= 0 or self._missing(column):
            return -math.inf, math.inf
        usual = self.times * max(column.changes)
        return min(last / self.ratio, last - usual), max(last * self.ratio, last + usual)

    def _accept(self, column: NormColumn, step: int, value: float) -> None:
        if column.last is not None:
            column.changes.append(min(abs(value - column.last), _LARGEST))
            del column.changes[: -self.window_steps]
        column.last, column.last_step = value, step
        column.excursion_start = None
        column.flagged.clear()
