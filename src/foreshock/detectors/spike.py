"""Alarm on a value far above the recent spread."""

import math
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.baseline import BaselineColumn, BaselineDetector
from foreshock.core.detector import AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.core.stats import MAD_TO_SD, RollingMedian


@dataclass(frozen=True, kw_only=True)
class Spike(BaselineDetector):
    """Alarm when a value stands more than `z` robust deviations above what is expected.

    Expected is the median of the last few healthy values, `level`, moved by the usual
    residual; a residual is the distance of a value from the level before it:

        value > level + median(residuals) + z * max(1.4826 * MAD(residuals), floor * |level|)

    The short level follows a falling loss, so that its fall does not count as spread and
    hide a spike; median and MAD keep one outlier from hiding the next.

    Args:
        z: 6 as in the public skip rules. Lower sees smaller spikes and raises more
            alarms on batches that are merely hard.
        onset_z: where an excursion is said to begin.
        window_steps: healthy values in the level. Fewer follows faster and is noisier.
        spread_steps: residuals remembered, 128 as in the same rules.
        warmup_steps: 20 finite values.
        floor: smallest spread as a share of the level, so that a loss which hardly varies
            does not alarm on rounding.
        rebaseline_after_steps: see `BaselineDetector`.

    NaN and Inf are left to `nonfinite`.

    >>> import numpy as np
    >>> rule = Spike(warmup_steps=4)
    >>> values = np.array([[2.0], [2.1], [1.9], [2.0], [2.1], [4.0]])
    >>> _, alarms = rule.update(rule.init(["loss/global"]), np.arange(6), values)
    >>> [(alarm.step, round(alarm.baseline, 3)) for alarm in alarms]
    [(5, 2.05)]

    Reference: OLMo-core `SkipStepOptimizer` and levanter `skip_bad_steps` (6 sigma over
    128 steps); level and residuals are our choice, because the loss of a young run falls
    by more than its noise within 128 steps.
    """

    name: ClassVar[str] = "spike"
    kind = AlarmKind.SPIKE
    watches: tuple[str, ...] = ("loss",)
    every_scope: bool = False
    z: float = 6.0
    onset_z: float = 3.0
    window_steps: int = 20
    spread_steps: int = 128
    warmup_steps: int = 20
    floor: float = 0.01
    rebaseline_after_steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_order("onset_z", "z")
        if self.spread_steps < 1:
            raise ConfigError(f"spike.spread_steps is {self.spread_steps}; it must be at least 1")
        if not self.floor >= 0:
            raise ConfigError(f"spike.floor is {self.floor}; it must be 0 or more")

    def start(self, series: str) -> BaselineColumn:
        return BaselineColumn(
            series,
            healthy=RollingMedian(self.window_steps),
            residuals=RollingMedian(self.spread_steps),
        )

    def remember(self, column: BaselineColumn, value: float) -> None:
        residual = value - column.healthy.median()  # NaN for the first, Inf beyond float64
        if math.isfinite(residual):
            column.residuals.add(residual)
        column.healthy.add(value)

    def limits(self, column: BaselineColumn) -> tuple[float, float, float]:
        level = column.healthy.median()
        if not len(column.residuals):
            return level, math.inf, math.inf
        expected = level + column.residuals.median()
        spread = max(MAD_TO_SD * column.residuals.mad(), self.floor * abs(level))
        if spread == 0:  # a series that is always exactly zero has no scale to judge by
            return expected, math.inf, math.inf
        return expected, expected + self.onset_z * spread, expected + self.z * spread
