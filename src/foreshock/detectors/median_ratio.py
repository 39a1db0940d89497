"""Alarm on a value that is a multiple of the recent median."""

import math
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.baseline import BaselineColumn, BaselineDetector
from foreshock.core.detector import AlarmKind
from foreshock.core.stats import RollingMedian


@dataclass(frozen=True, kw_only=True)
class MedianRatio(BaselineDetector):
    """Alarm when a positive value exceeds `ratio` times the median of the last values.

    `value > ratio * median(last window_steps healthy values)`. Scale-free, so that it
    suits norms and ratios, whose level differs from model to model.

    Args:
        ratio: 5 is what public run books use for the gradient norm. Lower alarms
            earlier and more often; 2 is where an excursion is said to begin.
        onset_ratio: a value above this multiple starts the excursion whose first
            step an alarm reports as its onset.
        window_steps: 1,000 by the same source.
        warmup_steps: 20 finite values; before that no alarm is raised, and
            `thresholds` says how many are missing. Fewer would let the fall of the
            first steps set the level.
        rebaseline_after_steps: see `BaselineDetector`.

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
    warmup_steps: int = 20
    rebaseline_after_steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_order("onset_ratio", "ratio")

    def start(self, series: str) -> BaselineColumn:
        return BaselineColumn(series, healthy=RollingMedian(self.window_steps))

    def remember(self, column: BaselineColumn, value: float) -> None:
        column.healthy.add(value)

    def limits(self, column: BaselineColumn) -> tuple[float, float, float]:
        median = column.healthy.median()
        if median <= 0:
            return median, math.inf, math.inf
        return median, self.onset_ratio * median, self.ratio * median
