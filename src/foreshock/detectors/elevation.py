"""Alarm on a value that stays a multiple of the recent median."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from foreshock.core.baseline import (
    Array,
    Figures,
    WindowColumn,
    WindowDetector,
    medians_ahead,
    multiple,
    multiples,
    phase_of,
)
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError

_TOLERATED = 1
"""Values of the last `hold_steps` that may be back in range: norms are noisy."""


@dataclass(slots=True)
class ElevationColumn(WindowColumn):
    """Memory of the elevation rule for one series.

    Attributes:
        held: finite values since the first one that was too high, kept out of the baseline
            until it is decided whether they are an elevation.
    """

    held: list[float] = field(default_factory=list[float])


@dataclass(frozen=True, kw_only=True)
class Elevation(WindowDetector[ElevationColumn]):
    """Alarm when a positive signal stays above `ratio` times its median of before.

    With m the median of the last `window_steps` values before the first one above
    `ratio * m`: alarm at a value above it if it is at least the `hold_steps`-th since then
    and of the last `hold_steps` at most one is not above. The onset is the first one above;
    every further one above alarms too. The excursion ends when two of the last `hold_steps`
    are back in range. Values of an excursion enter the baseline only if it ended without an
    alarm. So a lone spike is left to `median_ratio`, and a slow rise to the rules for
    trends: the median follows what takes longer than its window to double.

    Args:
        ratio: 2, where `median_ratio` too lets an excursion begin; between 2 and 5 times
            it raises no alarm itself, however long that lasts. Lower alarms on the
            ordinary changes of a norm between data mixtures.
        hold_steps: 5. If one step in a hundred lies above twice the median by chance, an
            alarm by chance comes once in 3e7 steps. More is later and surer.
        window_steps: 200 healthy values: steady to 9 % of the noise, and half of it, by
            which the median lags, is far from what healthy growth needs to double
            (thousands of steps: a norm that grows from 4 to 24 in 20,000 doubles in 7,700).
        refresh_steps: 50 healthy values, a quarter of the window; see `WindowDetector`.
        warmup_steps: 40 finite values, twice as many as the spike rules need: the norm of
            the first steps says little about a level that shall be doubled for good.
        rebaseline_after_steps: 100 alarms of one excursion; then its level is accepted and
            reported once as a shift. As in the other rules.

    NaN and Inf are left to `nonfinite`: they count neither as above nor as back in range,
    and never enter the median. A series whose median is zero or negative cannot be watched
    by a ratio. `thresholds` tells no limit, as no single value alarms.

    >>> import numpy as np
    >>> rule = Elevation(warmup_steps=3, hold_steps=3)
    >>> values = np.array([[1.0], [1.0], [1.0], [9.0], [1.0], [1.0], [3.0], [3.0], [3.0], [1.0]])
    >>> _, alarms = rule.update(rule.init(["grad_norm/global"]), np.arange(10), values)
    >>> [(alarm.step, alarm.onset_step, alarm.threshold) for alarm in alarms]
    [(8, 6, 2.0)]

    No source: our choice. Run books name a sustained rise of the gradient norm to 2 to 10
    times its level as a sign of instability, but give no rule for it.
    """

    name: ClassVar[str] = "elevation"
    advisory: ClassVar[bool] = True
    watches: tuple[str, ...] = ("grad_norm", "update_ratio")
    every_scope: bool = False
    ratio: float = 2.0
    hold_steps: int = 5
    window_steps: int = 200
    refresh_steps: int = 50
    warmup_steps: int = 40
    rebaseline_after_steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ratio > 1:
            raise ConfigError(f"elevation.ratio is {self.ratio}; it must be above 1")
        if self.hold_steps <= _TOLERATED + 1:
            raise ConfigError(
                f"elevation.hold_steps is {self.hold_steps}; it must be at least "
                f"{_TOLERATED + 2} steps, as {_TOLERATED} of them may be back in range"
            )

    def start(self, series: str) -> ElevationColumn:
        return ElevationColumn(series, phase=phase_of(series))

    @property
    def kept_steps(self) -> int:
        return self.window_steps

    def judge(self, column: ElevationColumn) -> None:
        median = column.baseline = column.window.median()
        column.onset_limit = column.limit = multiple(self.ratio, median)

    def settled(self, column: ElevationColumn) -> bool:
        return len(column.window) == self.window_steps

    def foresee(self, column: ElevationColumn, values: Array, num_refreshes: int) -> Figures:
        medians = medians_ahead(self, column, values, num_refreshes)
        limits = multiples(self.ratio, medians)
        return {"baseline": medians, "onset_limit": limits, "limit": limits}

    def alarm_limit(self, column: ElevationColumn) -> float:
        return math.inf

    def unusual(self, column: ElevationColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        above = value > column.limit
        if column.excursion_start is None:
            if not above:  # only huge, or warming up
                self.accept(column, value)
                return None
            column.excursion_start = step
            self.set_gate(column)
        column.held.append(value)
        last = column.held[-self.hold_steps :]
        num_back = sum(one <= column.limit for one in last)
        if num_back > _TOLERATED:
            self._end(column)
            return None
        if not above or len(last) < self.hold_steps:
            return None
        column.flagged.append(value)
        if len(column.flagged) < self.rebaseline_after_steps:
            return self.alarm(column, AlarmKind.ELEVATION, step, value)
        alarm = self.alarm(column, AlarmKind.SHIFT, step, value)
        level = column.held.copy()
        column.held.clear()
        self.start_over(column, level)
        return alarm

    def _end(self, column: ElevationColumn) -> None:
        """Go back to the ordinary: what was held is healthy, if it was no elevation."""
        healthy = [value for value in column.held if not column.flagged or value <= column.limit]
        column.held.clear()
        column.flagged.clear()
        column.excursion_start = None
        self.set_gate(column)
        for value in healthy:
            self.accept(column, value)
