"""Report clipping that decides nearly every update."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foreshock.core.detector import (
    ONSET_REACH_STEPS,
    Alarm,
    AlarmKind,
    Column,
    ScalarDetector,
    Steps,
    Threshold,
)
from foreshock.core.errors import ConfigError
from foreshock.core.reference import Readings, finite_only


@dataclass(slots=True)
class SaturationColumn(Column):
    """Memory of the saturation rule for one series.

    Attributes:
        num_warm: readings of the warm-up that have passed.
        full: how many saturated readings there have been, less `_drain` for each other one.
        told: whether this stretch has been reported.
        since: step at which `full` last left zero.
    """

    num_warm: int = 0
    full: int = 0
    told: bool = False
    since: int = 0


@dataclass(frozen=True, kw_only=True)
class ClipSaturation(ScalarDetector[SaturationColumn]):
    """Report, once a stretch, that clipping removes nearly the whole norm nearly every time.

        full = full + 1 if value >= share else max(0, full - drain)
        alarm when full reaches `patience_readings`

    Such a run does not follow its gradient's length any more, only its direction: the clip
    value has become the step size. Told again after `full` was back at zero.

    Args:
        share: of the norm that clipping removes: 0.9, the gradient is ten times the limit.
        drain: readings that one without saturation makes up for. With 9, a share of 90 %
            saturated readings or less never alarms.
        warmup_readings: passed over; the gradient of a young run is large.
        patience_readings: 200 after that, so that a rough patch does not count.

    NaN and Inf are left to `nonfinite`, and count as no reading.

    >>> import numpy as np
    >>> rule = ClipSaturation(warmup_readings=0, patience_readings=5)
    >>> values = np.array([0.95, 0.1] + [0.99] * 8)[:, None]
    >>> _, alarms = rule.update(rule.init(["clip_share/global"]), np.arange(10), values)
    >>> [(alarm.step, alarm.onset_step) for alarm in alarms]
    [(6, 2)]

    Raises:
        ConfigError: a setting is out of its range.

    No source: our choice; public monitors count clipped steps, but a healthy run may clip at
    every step, a little.
    """

    name: ClassVar[str] = "clip_saturation"
    advisory: ClassVar[bool] = True
    watches: tuple[str, ...] = ("clip_share",)
    every_scope: bool = False
    share: float = 0.9
    drain: int = 9
    warmup_readings: int = 100
    patience_readings: int = 200

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"clip_saturation.share is {self.share}; it must be in (0, 1]")
        self.require_at_least(1, "drain", "patience_readings")
        self.require_at_least(0, "warmup_readings")

    def start(self, series: str) -> SaturationColumn:
        return SaturationColumn(series)

    def see(self, column: SaturationColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        if column.num_warm < self.warmup_readings:
            column.num_warm += 1
            return None
        if value < self.share:
            column.full = max(0, column.full - self.drain)
            column.told = column.told and column.full > 0
            return None
        if column.full == 0:
            column.since = step
        # Beyond the patience nothing is added, or a long stretch would take long to end.
        column.full = min(column.full + 1, self.patience_readings)
        if column.told or column.full < self.patience_readings:
            return None
        column.told = True
        return Alarm(
            kind=AlarmKind.SATURATION,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=max(column.since, step - ONSET_REACH_STEPS),
            value=value,
            threshold=self.share,
        )

    def skim(self, column: SaturationColumn, steps: Steps, values: Readings) -> int:
        """Takes in stretches that are wholly saturated or wholly not."""
        if column.num_warm < self.warmup_readings:
            return 0
        _, kept, places = finite_only(steps, values)
        over = kept >= self.share
        if column.told and column.full == self.patience_readings:
            count = len(kept) if over.all() else int(np.argmin(over))
        elif column.full == 0:
            count = int(np.argmax(over)) if over.any() else len(kept)
        else:
            return 0
        if count == len(kept):
            return len(values)
        return count if places is None else int(places[count])

    def threshold(self, column: SaturationColumn) -> Threshold:
        missing = self.warmup_readings - column.num_warm
        if missing > 0:
            return Threshold(math.nan, math.nan, missing)
        return Threshold(math.nan, math.inf, 0)
