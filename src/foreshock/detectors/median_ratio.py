"""Alarm on a value that is a multiple of the recent median."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.baseline import (
    Array,
    BaselineDetector,
    Figures,
    WindowColumn,
    medians_ahead,
    multiple,
    multiples,
    phase_of,
)
from foreshock.core.detector import AlarmKind


@dataclass(frozen=True, kw_only=True)
class MedianRatio(BaselineDetector[WindowColumn]):
    """Alarm when a positive value exceeds `ratio` times the median of the last values.

    `value > ratio * median(last window_steps healthy values)`. Scale-free, so that it
    suits norms and ratios, whose level differs from model to model.

    Args:
        ratio: 5 is what public run books use for the gradient norm. Lower alarms
            earlier and more often.
        onset_ratio: 2: a value above this multiple starts the excursion whose first
            step an alarm reports as its onset; below it lies the noise of a norm.
        window_steps: 1,000 by the same source.
        refresh_steps: 250 healthy values, a quarter of the window: the median looks at
            most that much further back than the half window it looks back anyway. More
            costs less and follows later. See `WindowDetector`.
        warmup_steps: 20 finite values; before that no alarm is raised, and
            `thresholds` says how many are missing. Fewer would let the fall of the
            first steps set the level.
        rebaseline_after_steps: 100, as long as an onset may reach back; see
            `WindowDetector`.

    NaN and Inf are left to `nonfinite` and never enter the median. A series whose
    median is zero cannot be watched by a ratio: its limit is infinite.

    >>> import numpy as np
    >>> rule = MedianRatio(warmup_steps=3)
    >>> values = np.array([[1.0], [1.0], [1.0], [3.0], [6.0], [1.0]])
    >>> _, alarms = rule.update(rule.init(["grad_norm/global"]), np.arange(6), values)
    >>> [(alarm.step, alarm.onset_step, alarm.threshold) for alarm in alarms]
    [(4, 3, 5.0)]

    Reference: the sources' run book (gradient norm above five times the median of the
    last 1,000 steps).
    """

    name: ClassVar[str] = "median_ratio"
    kind = AlarmKind.SPIKE
    watches: tuple[str, ...] = ("grad_norm", "update_ratio")
    every_scope: bool = False
    ratio: float = 5.0
    onset_ratio: float = 2.0
    window_steps: int = 1000
    refresh_steps: int = 250
    warmup_steps: int = 20
    rebaseline_after_steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_order("onset_ratio", "ratio")

    def start(self, series: str) -> WindowColumn:
        return WindowColumn(series, phase=phase_of(series))

    @property
    def kept_steps(self) -> int:
        return self.window_steps

    def judge(self, column: WindowColumn) -> None:
        median = column.baseline = column.window.median()
        column.onset_limit = multiple(self.onset_ratio, median)
        column.limit = multiple(self.ratio, median)

    def settled(self, column: WindowColumn) -> bool:
        return len(column.window) == self.window_steps

    def foresee(self, column: WindowColumn, values: Array, num_refreshes: int) -> Figures:
        medians = medians_ahead(self, column, values, num_refreshes)
        return {
            "baseline": medians,
            "onset_limit": multiples(self.onset_ratio, medians),
            "limit": multiples(self.ratio, medians),
        }
