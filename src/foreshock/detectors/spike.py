"""Alarm on a value far above the recent spread."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.baseline import BaselineDetector
from foreshock.core.detector import AlarmKind
from foreshock.core.stats import MAD_TO_SD, RollingMedian


@dataclass(frozen=True, kw_only=True)
class Spike(BaselineDetector):
    """Alarm when a value stands more than `z` robust deviations above the median.

    `value > median + z * max(1.4826 * MAD, floor * |median|)` over the last healthy
    values. Median and MAD instead of mean and deviation, since one outlier in the
    window must not hide the next.

    Args:
        z: 6 as in the public skip rules. Lower sees smaller spikes and raises more
            alarms on batches that are merely hard.
        onset_z: where an excursion is said to begin.
        window_steps: 128 as in the same rules: short enough to follow a falling loss,
            which otherwise stands below its own median for long.
        warmup_steps: 20 finite values.
        floor: smallest spread as a share of the median, so that a loss which hardly
            varies does not alarm on rounding.
        rebaseline_after_steps: see `BaselineDetector`.

    While the loss falls steeply, a spike must first make up for the fall. NaN and
    Inf are left to `nonfinite`.

    >>> import numpy as np
    >>> rule = Spike(warmup_steps=4)
    >>> values = np.array([[2.0], [2.1], [1.9], [2.0], [2.1], [4.0]])
    >>> _, alarms = rule.update(rule.init(["loss/global"]), np.arange(6), values)
    >>> [(alarm.step, alarm.baseline) for alarm in alarms]
    [(5, 2.0)]

    Reference: OLMo-core `SkipStepOptimizer` and levanter `skip_bad_steps` (6 sigma over
    128 steps); the robust form is our choice.
    """

    name: ClassVar[str] = "spike"
    kind = AlarmKind.SPIKE
    watches: tuple[str, ...] = ("loss",)
    every_scope: bool = False
    z: float = 6.0
    onset_z: float = 3.0
    window_steps: int = 128
    warmup_steps: int = 20
    floor: float = 0.01
    rebaseline_after_steps: int = 100

    def limits(self, healthy: RollingMedian) -> tuple[float, float, float]:
        median = healthy.median()
        spread = max(MAD_TO_SD * healthy.mad(), self.floor * abs(median))
        return median, median + self.onset_z * spread, median + self.z * spread
