"""Report a learning rate that jumps above all that the run has trained with."""

import math
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar

from foreshock.core.detector import Alarm, AlarmKind, Column, ScalarDetector, Threshold

_LARGEST = sys.float_info.max


@dataclass(slots=True)
class RateColumn(Column):
    """Memory of the rate rule for one series.

    Attributes:
        last: the last rate that was not flagged, None before the first.
        highest: the highest of them in the run.
        rises: by how much each of the last ones was above the one before it.
        num_seen: how many there were, up to the warm-up.
    """

    last: float | None = None
    highest: float = -math.inf
    rises: list[float] = field(default_factory=list[float])
    num_seen: int = 0


@dataclass(frozen=True, kw_only=True)
class RateJump(ScalarDetector[RateColumn]):
    """Alarm once when the rate rises in one step far above all rates of the run.

    With h the highest rate so far, m the last one and d the largest rise of one step among the
    last `window_steps`: alarm at a rate above `max(ratio h, m + times d)`. So no warm-up alarms,
    linear or exponential, whose next step is never much larger than those before; nor does a
    schedule that goes back up to where it has been, as warm restarts do.

    A rate is what someone set, perhaps on purpose: the new one is accepted at once, and the one
    alarm, a shift, opens an episode in doubt, in which a probe finds out whether the raised rate
    does harm. It is there for what stays below the limits of other rules: nine times the rate for
    a dozen steps ruins a model whose updates had been larger early on.

    Args:
        ratio: 3. Lower asks for more probes; rates that are raised by less do little at once.
        times: 4.
        window_steps: 50.
        warmup_steps: 5 finite rates.
        rebaseline_after_steps: 1 flagged rate, and the new level is accepted and reported as a
            shift. More alarms at each step until then, and so confirms an episode without a probe.

    NaN and Inf are left to others and change nothing. Rates of zero or below have no ratio. What
    a resumed run begins with is accepted, as it may have been changed by hand. The same on every
    rank.

    Raises:
        ConfigError: a setting is out of its range.

    >>> import numpy as np
    >>> rule = RateJump()
    >>> values = np.array([[1.0], [2.0], [3.0], [3.0], [3.0], [3.0], [30.0], [30.0], [3.0]])
    >>> _, alarms = rule.update(rule.init(["lr/global"]), np.arange(9), values)
    >>> [(alarm.kind.value, alarm.step, alarm.threshold) for alarm in alarms]
    [('shift', 6, 9.0)]

    No source: our choice.
    """

    name: ClassVar[str] = "rate_jump"
    watches: tuple[str, ...] = ("lr",)
    every_scope: bool = False
    ratio: float = 3.0
    times: float = 4.0
    window_steps: int = 50
    warmup_steps: int = 5
    rebaseline_after_steps: int = 1

    def __post_init__(self) -> None:
        self.require_at_least(1, "window_steps", "rebaseline_after_steps")
        self.require_at_least(2, "warmup_steps")
        self.require_positive("times")
        self.require_above_one("ratio")

    def start(self, series: str) -> RateColumn:
        return RateColumn(series)

    def resumed(self, state: Any) -> Any:
        return [self.start(column.series) for column in state]

    def see(self, column: RateColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        limit = self._limit(column)
        if not value > limit:
            self._accept(column, value)
            return None
        assert column.last is not None
        if column.excursion_start is None:
            column.excursion_start = step
        column.flagged.append(value)
        persists = len(column.flagged) >= self.rebaseline_after_steps
        alarm = Alarm(
            kind=AlarmKind.SHIFT if persists else AlarmKind.SPIKE,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=column.excursion_start,
            value=value,
            baseline=column.last,
            threshold=limit,
        )
        if persists:
            column.last = None  # this rise is none of the ordinary ones
            self._accept(column, value)
        return alarm

    def threshold(self, column: RateColumn) -> Threshold:
        missing = max(0, self.warmup_steps - column.num_seen)
        if missing or column.last is None:
            return Threshold(math.nan, math.nan, max(missing, 1))
        return Threshold(column.last, self._limit(column), 0)

    def _limit(self, column: RateColumn) -> float:
        last = column.last
        if last is None or column.highest <= 0 or column.num_seen < self.warmup_steps:
            return math.inf
        return max(self.ratio * column.highest, last + self.times * max(column.rises, default=0.0))

    def _accept(self, column: RateColumn, value: float) -> None:
        if column.last is not None:
            column.rises.append(min(max(0.0, value - column.last), _LARGEST))
            del column.rises[: -self.window_steps]
        column.last, column.highest = value, max(column.highest, value)
        column.num_seen = min(column.num_seen + 1, self.warmup_steps)
        column.excursion_start = None
        column.flagged.clear()
