"""Report a signal that climbs beyond what is known to end badly, whatever its own past."""

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
from foreshock.core.names import MAX_ATTENTION_LOGIT, RMS_T, split_series
from foreshock.core.reference import Readings, finite_only


@dataclass(slots=True)
class CeilingColumn(Column):
    """Memory of the ceiling rule for one series.

    Attributes:
        was_below: whether it has ever stood at or below its limit.
        num_above: readings above it in a row.
        since: step of the first of them.
        next_told: value beyond which it is told of again.
    """

    was_below: bool = False
    num_above: int = 0
    since: int = 0
    next_told: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ceiling(ScalarDetector[CeilingColumn]):
    """Report a signal above a fixed limit, when it has crossed it, and at each doubling.

        alarm when `patience_readings` readings in a row are above the limit, the series has
        stood below it before, and the value is twice that last told of

    The limits are those at which others saw runs go wrong, so that a run is warned from its
    first steps on, before any rule has learned its own past. A series that has always stood
    above says nothing: its measure may be another.

    Args:
        attention_logit: an alarm at 100, expect failure at 10,000.
        rms_t: of squared gradient over second moment; spikes follow one to eight steps later.
        patience_readings: above the limit in a row before it is told.

    NaN and Inf are left to `nonfinite`, and count as no reading.

    >>> import numpy as np
    >>> rule = Ceiling()
    >>> values = np.array([60.0, 90, 120, 130, 150, 270, 90])[:, None]
    >>> _, alarms = rule.update(rule.init(["max_attention_logit/blocks.0"]), np.arange(7), values)
    >>> [(alarm.step, alarm.onset_step, alarm.value) for alarm in alarms]
    [(3, 2, 130.0), (5, 2, 270.0)]

    Raises:
        ConfigError: a setting is out of its range.

    Reference: Kimi K2 2025 (logits capped at 100) and Wortsman et al. 2023, "Small-scale
    proxies" (every run above 10,000 diverged) for the first limit; Wortsman et al. 2023,
    "Stable and low-precision training", section 3.4, for the second (2.3).
    """

    name: ClassVar[str] = "ceiling"
    advisory: ClassVar[bool] = True
    watches: tuple[str, ...] = (MAX_ATTENTION_LOGIT.name, RMS_T.name)
    every_scope: bool = True
    attention_logit: float = 100.0
    rms_t: float = 2.3
    patience_readings: int = 2

    def __post_init__(self) -> None:
        self.require_positive("attention_logit", "rms_t")
        self.require_at_least(1, "patience_readings")

    def _limit(self, series: str) -> float:
        return self.rms_t if split_series(series)[0] == RMS_T.name else self.attention_logit

    def start(self, series: str) -> CeilingColumn:
        return CeilingColumn(series)

    def see(self, column: CeilingColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        limit = self._limit(column.series)
        if value <= limit:
            column.was_below, column.num_above, column.next_told = True, 0, limit
            return None
        if not column.was_below:
            return None
        if column.num_above == 0:
            column.since = step
        column.num_above = min(column.num_above + 1, self.patience_readings)
        if column.num_above < self.patience_readings or value <= column.next_told:
            return None
        column.next_told = 2 * value
        return Alarm(
            kind=AlarmKind.ELEVATION,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=max(column.since, step - ONSET_REACH_STEPS),
            value=value,
            threshold=limit,
        )

    def skim(self, column: CeilingColumn, steps: Steps, values: Readings) -> int:
        """Takes in a stretch that stays below."""
        limit = self._limit(column.series)
        _, kept, places = finite_only(steps, values)
        over = kept > limit
        count = int(np.argmax(over)) if over.any() else len(kept)
        if count:
            column.was_below, column.num_above, column.next_told = True, 0, limit
        if count == len(kept):
            return len(values)
        return count if places is None else int(places[count])

    def threshold(self, column: CeilingColumn) -> Threshold:
        return Threshold(math.nan, math.inf, 0)
