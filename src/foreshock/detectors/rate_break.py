"""Report a learning rate that leaves its course within one step, down or up."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from foreshock.core.detector import (
    Alarm,
    AlarmKind,
    Column,
    ScalarDetector,
    Threshold,
)


@dataclass(slots=True)
class BreakColumn(Column):
    """Memory of the rule for one series.

    Attributes:
        last: the last rate, None before the first.
        changes: by half of how much each of the last ones was away from the one before it.
        num_seen: how many rates there were since the last break, up to the warm-up.
    """

    last: float | None = None
    changes: list[float] = field(default_factory=list[float])
    num_seen: int = 0


@dataclass(frozen=True, kw_only=True)
class RateBreak(ScalarDetector[BreakColumn]):
    """Report once that the rate fell below, or rose above, a share of itself in one step.

    With m the last rate and d the largest change of one step, up or down, among the last
    `window_steps`: reported is a rate x with `x < (1 - fall) m` or `x > (1 + rise) m`, if also
    `|x - m| > times d`. So neither the last steps of a linear decay, each of which halves the
    rate or more, nor the first of a warm-up are breaks. A schedule in steps breaks at each of
    them, and one of warm restarts at each restart: what was meant is not known here, so that
    this is recorded and weighed, and nothing is done about it. What it is for: a schedule that was
    lost at a restart begins its warm-up anew, or stands at its peak. `rate_jump` is for rates
    above all that the run has trained with.

    Args:
        fall: 0.33. The first step of a decay by `1 - sqrt(t / N)` is a fall by a tenth for N =
            100, by 0.32 for N = 10; schedules in steps fall by half or more.
        rise: 0.5; the inverse of that fall.
        times: 4, as in `rate_jump`: the change from one step to the next of a smooth schedule
            is much like the one before.
        window_steps: 50.
        warmup_steps: 5 finite rates, and as many after each break, in which a warm-up begins
            again.

    NaN and Inf are left to others and change nothing. A rate that was not above 0 has no share.
    A restart is not told apart: the rate before it is what the rate after it is held against.

    Raises:
        ConfigError: a setting is out of its range.

    >>> import numpy as np
    >>> values = np.array([[4.0], [3.9], [3.8], [3.7], [3.6], [0.5], [1.0], [1.5], [2.0]])
    >>> rule = RateBreak()
    >>> _, (alarm,) = rule.update(rule.init(["lr/global"]), np.arange(9), values)
    >>> alarm.step, alarm.value, alarm.baseline
    (5, 0.5, 3.6)

    No source: our choice.
    """

    name: ClassVar[str] = "rate_break"
    advisory: ClassVar[bool] = True
    watches: tuple[str, ...] = ("lr",)
    every_scope: bool = False
    fall: float = 0.33
    rise: float = 0.5
    times: float = 4.0
    window_steps: int = 50
    warmup_steps: int = 5

    def __post_init__(self) -> None:
        self.require_at_least(1, "window_steps")
        self.require_at_least(2, "warmup_steps")
        self.require_positive("fall", "rise", "times")

    def start(self, series: str) -> BreakColumn:
        return BreakColumn(series)

    def see(self, column: BreakColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        last = column.last
        broke = last is not None and self._breaks(column, last, value)
        if last is not None and not broke:
            column.changes.append(abs(0.5 * value - 0.5 * last))
            del column.changes[: -self.window_steps]
        column.last = value
        column.num_seen = min(column.num_seen + 1, self.warmup_steps)
        if last is None or not broke:
            return None
        column.changes, column.num_seen = [], 1  # another course begins
        return Alarm(
            kind=AlarmKind.SHIFT,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=step,
            value=value,
            baseline=last,
            threshold=self._limits(last)[value > last],
        )

    def threshold(self, column: BreakColumn) -> Threshold:
        missing = self.warmup_steps - column.num_seen
        if missing > 0 or column.last is None:
            return Threshold(math.nan, math.nan, max(missing, 1))
        return Threshold(column.last, math.inf, 0)

    def _limits(self, last: float) -> tuple[float, float]:
        return (1.0 - self.fall) * last, (1.0 + self.rise) * last

    def _breaks(self, column: BreakColumn, last: float, value: float) -> bool:
        if column.num_seen < self.warmup_steps or not last > 0:
            return False
        low, high = self._limits(last)
        if low <= value <= high:
            return False
        # Halves, so that no difference of finite rates overflows.
        return abs(0.5 * value - 0.5 * last) > self.times * max(column.changes, default=0.0)
