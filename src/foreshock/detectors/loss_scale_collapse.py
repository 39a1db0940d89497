"""Alarm on a loss scale that only falls."""

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

_NEW_SCALER = 256.0
"""A scale that rises by this much at once was set, not grown: a scaler doubles."""

_EARLY_STEPS = 100


@dataclass(slots=True)
class LossScaleColumn(Column):
    """Memory of the loss-scale rule for one series.

    Attributes:
        last: the last reading.
        peak: the scale before it began to fall without growing.
        fall_step: step at which the scale last began to fall.
        num_even: readings in a row that were not below the one before.
        is_settled: whether the first search for a scale is over.
        has_fallen: whether the scale ever fell.
        floor: a scale below this is a collapse.
        first_step: of the first reading, -1 before.
        second_step: of the second reading, -1 before.
    """

    last: float = 0.0
    peak: float = 0.0
    fall_step: int = 0
    num_even: int = 0
    is_settled: bool = False
    has_fallen: bool = False
    floor: float = 1.0
    first_step: int = -1
    second_step: int = -1


@dataclass(frozen=True, kw_only=True)
class LossScaleCollapse(ScalarDetector[LossScaleColumn]):
    """Alarm when the loss scale has fallen by `factor` without growing, or below `floor`.

        peak / value >= factor   since the last growth, once the first search is over
        value < floor            whenever it came there by falling

    A scaler begins high and halves until gradients fit: the search is over at the first
    growth, or after `search_readings` readings without a fall. A log that begins in mid-run
    (its first step lies beyond 100, and beyond twice the distance of its first two) has it
    behind it. A healthy scale then goes round: doubled, one halving, doubled again. A rise
    by 256 at once is a new scaler, which searches anew.

    Its alarms may roll a run back: a scale that only falls means that gradients overflow on
    every batch, whatever the scale.

    Args:
        factor: 32, five halvings. Fewer would count a rough patch, which the next growth ends.
        floor: 1. Below that the scaler makes gradients smaller than they are.
        search_readings: 20 without a fall. A search halves at every step, or every second
            one; fewer would take its pauses for an end.
        rebaseline_after_steps: consecutive flagged readings after which the scale is the new
            normal, reported once as a shift.

    NaN and Inf are passed over. A constant scale, 1 under bf16, never alarms; nor does a
    print that averages over several scales, for it need not be a power of two here.

    >>> import numpy as np
    >>> scale = [65536.0] * 25 + [65536.0 / 2**fall for fall in range(1, 7)]
    >>> rule = LossScaleCollapse()
    >>> _, alarms = rule.update(
    ...     rule.init(["loss_scale/global"]), np.arange(31), np.array(scale)[:, None]
    ... )
    >>> [(alarm.step, alarm.onset_step, alarm.value) for alarm in alarms]
    [(29, 25, 2048.0), (30, 25, 1024.0)]

    Raises:
        ConfigError: a setting is out of its range.

    Reference: Micikevicius et al. 2018, Mixed Precision Training, section 3.2 (the scale grows
    while there is no overflow); the factor and the search are our choice.
    """

    name: ClassVar[str] = "loss_scale_collapse"
    watches: tuple[str, ...] = ("loss_scale",)
    every_scope: bool = False
    factor: float = 32.0
    floor: float = 1.0
    search_readings: int = 20
    rebaseline_after_steps: int = 100

    def __post_init__(self) -> None:
        self.require_above_one("factor")
        if not 0 <= self.floor < math.inf:
            raise ConfigError(f"loss_scale_collapse.floor is {self.floor}; it must be 0 or more")
        self.require_at_least(1, "search_readings", "rebaseline_after_steps")

    def start(self, series: str) -> LossScaleColumn:
        return LossScaleColumn(series, floor=self.floor)

    def see(self, column: LossScaleColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        if column.first_step < 0:
            column.first_step = step
            column.last = column.peak = value
            return None
        if column.second_step < 0:
            column.second_step = step
            gap = step - column.first_step
            column.is_settled = column.first_step > max(_EARLY_STEPS, 2 * gap)
        last, column.last = column.last, value
        if value < last:
            if not column.is_settled and value >= column.floor:
                column.peak = value  # each step of the search is a new beginning
            elif last >= column.peak or column.num_even >= self.search_readings:
                column.fall_step = step
            column.num_even = 0
            column.has_fallen = True
        else:
            column.num_even += 1
            if value > last and value >= column.floor:
                is_new = value >= _NEW_SCALER * last
                column.is_settled = not is_new
                column.peak = value
                if value >= self.floor:  # below it, what has been accepted stays accepted
                    column.floor = self.floor
            elif column.num_even >= self.search_readings:
                column.is_settled = True
        return self._judge(column, step, value)

    def skim(self, column: LossScaleColumn, steps: Steps, values: Readings) -> int:
        """Takes in a scale that stays what it is."""
        if not column.is_settled or column.flagged or self._has_collapsed(column, column.last):
            return 0
        _, kept, places = finite_only(steps, values)
        same = kept == column.last
        count = len(kept) if same.all() else int(np.argmin(same))
        column.num_even += count
        if count == len(kept):
            return len(values)
        return count if places is None else int(places[count])

    def threshold(self, column: LossScaleColumn) -> Threshold:
        if column.first_step < 0:
            return Threshold(math.nan, math.nan, 1)
        return Threshold(column.peak, math.inf, 0)

    def _has_collapsed(self, column: LossScaleColumn, value: float) -> bool:
        below = value < column.floor and column.has_fallen
        far = 0 <= value < column.peak and value * self.factor <= column.peak
        return below or far

    def _judge(self, column: LossScaleColumn, step: int, value: float) -> Alarm | None:
        if not self._has_collapsed(column, value):
            column.flagged.clear()
            return None
        if not column.flagged and not column.is_settled:
            column.fall_step = step
        peak, limit = column.peak, max(column.peak / self.factor, column.floor)
        column.flagged.append(value)
        kind = AlarmKind.COLLAPSE
        if len(column.flagged) >= self.rebaseline_after_steps:
            column.flagged = []
            column.peak = value
            column.floor = min(column.floor, value)
            kind = AlarmKind.SHIFT
        return Alarm(
            kind=kind,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=max(column.fall_step, step - ONSET_REACH_STEPS),
            value=value,
            baseline=peak,
            threshold=limit,
        )
