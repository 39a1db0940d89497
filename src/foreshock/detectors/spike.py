"""Alarm on a value far above the recent spread."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foreshock.core.baseline import (
    NO_LIMIT,
    Array,
    BaselineDetector,
    Figures,
    WindowColumn,
    all_within_reach,
    known_and,
    phase_of,
    within_reach,
)
from foreshock.core.detector import AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.core.stats import (
    LARGEST_UNIT,
    MAD_TO_SD,
    printed_unit,
    row_medians,
    row_spreads,
    row_units,
    sorted_mad,
    sorted_median,
    windows_at,
)

_SPREAD_EVERY = 5
"""Refreshes of the level to one of the spread, which changes more slowly."""


@dataclass(slots=True)
class SpikeColumn(WindowColumn):
    """Memory of the spike rule for one series.

    Attributes:
        level: median of the last few healthy values at the last refresh.
        residuals: how far each healthy value stood from the level before it.
        shift: their median.
        deviation: their MAD, or half of the printed unit where that is more.
    """

    level: float = 0.0
    residuals: list[float] = dataclasses.field(default_factory=list[float])
    shift: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Spike(BaselineDetector[SpikeColumn]):
    """Alarm when a value stands more than `z` robust deviations above what is expected.

    Expected is the median of the last few healthy values, `level`, moved by the usual
    residual; a residual is the distance of a value from the level before it:

        value > level + median(residuals) + z * spread
        spread = max(1.4826 * max(MAD(residuals), unit / 2), floor * |level|)

    The short level follows a falling loss, so that its fall does not count as spread and
    hide a spike; median and MAD keep one outlier from hiding the next. `unit` is the one in
    which a log was printed (0.01 for "0.31"), and 0 for a series that was not rounded
    coarsely: a MAD of 0 then says only that the noise is below half a unit, more or less.

    Args:
        z: 6 as in the public skip rules. Lower sees smaller spikes and raises more
            alarms on batches that are merely hard.
        onset_z: 3, half of it: where an excursion is said to begin.
        window_steps: 20 healthy values in the level. Fewer follows faster and is noisier.
        spread_steps: residuals remembered, 128 as in the same rules.
        refresh_steps: 8 healthy values between two looks at the level, which then lags by 10
            to 18 values where it would lag by 10; the spread is renewed with each fifth, a
            third of its own window. More costs less and follows a falling loss later. See
            `WindowDetector`.
        warmup_steps: 20 finite values, a whole level.
        floor: smallest spread as a share of the level, 1 %, so that a loss which hardly
            varies does not alarm on what nobody would call a spike (less than 6 %).
        rebaseline_after_steps: 100, as long as an onset may reach back; see
            `WindowDetector`.

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
    refresh_steps: int = 8
    warmup_steps: int = 20
    floor: float = 0.01
    rebaseline_after_steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_order("onset_z", "z")
        if not self.floor >= 0:
            raise ConfigError(f"spike.floor is {self.floor}; it must be 0 or more")

    def start(self, series: str) -> SpikeColumn:
        return SpikeColumn(series, phase=phase_of(series))

    @property
    def kept_steps(self) -> int:
        return max(self.window_steps, self.spread_steps)

    def judge(self, column: SpikeColumn) -> None:
        window, residuals, level = column.window, column.residuals, column.level
        if column.num_accepted > len(column.fresh):  # the first has no level before it
            residuals += [value - level for value in column.fresh]
            del residuals[: -self.spread_steps]
        level = column.level = sorted_median(sorted(window[-self.window_steps :].tolist()))
        if not residuals:
            column.baseline, column.onset_limit, column.limit = level, NO_LIMIT, NO_LIMIT
            return
        turn = (column.num_accepted + column.phase) % (_SPREAD_EVERY * self.refresh_steps)
        if turn == 0 or len(residuals) < self.spread_steps:
            ordered = sorted(residuals)
            column.shift = sorted_median(ordered)
            mad = sorted_mad(ordered, column.shift)
            if mad < LARGEST_UNIT / 2:
                mad = max(mad, printed_unit(window[-self.spread_steps :]) / 2)
            column.deviation = mad
        baseline = column.baseline = level + column.shift
        spread = max(MAD_TO_SD * column.deviation, self.floor * abs(level))
        if spread == 0:  # a series that is always exactly zero has no scale to judge by
            column.onset_limit = column.limit = NO_LIMIT
            return
        column.onset_limit = within_reach(baseline + self.onset_z * spread)
        column.limit = within_reach(baseline + self.z * spread)

    def settled(self, column: SpikeColumn) -> bool:
        full = len(column.residuals) == self.spread_steps
        return full and len(column.window) == self.kept_steps

    def foresee(self, column: SpikeColumn, values: Array, num_refreshes: int) -> Figures:
        every, series = self.refresh_steps, known_and(column, values)
        first = len(column.window) + column.planned
        levels = row_medians(windows_at(series, self.window_steps, first, every, num_refreshes))

        done = column.num_accepted + column.planned + column.phase
        turns = _SPREAD_EVERY * every
        skipped = -done % turns // every  # refreshes before the first that renews the spread
        num_renewed = max(0, -(-(num_refreshes - skipped) // _SPREAD_EVERY))
        shifts, deviations = np.array([column.shift]), np.array([column.deviation])
        if num_renewed:
            residuals = self._residuals(column, values, levels)
            first_renewed = first + skipped * every
            ends = len(residuals) - len(series) + first_renewed
            found, mads = row_spreads(
                windows_at(residuals, self.spread_steps, ends, turns, num_renewed)
            )
            raw = windows_at(series, self.spread_steps, first_renewed, turns, num_renewed)
            small = mads < LARGEST_UNIT / 2
            mads[small] = np.maximum(mads[small], row_units(raw[small]) / 2)
            shifts = np.concatenate([shifts, found])
            deviations = np.concatenate([deviations, mads])
        lengths = np.full(num_renewed + 1, _SPREAD_EVERY)
        lengths[0] = min(skipped, num_refreshes)
        lengths[-1] = num_refreshes - int(lengths[:-1].sum())
        shifts, deviations = np.repeat(shifts, lengths), np.repeat(deviations, lengths)

        baselines = levels + shifts
        spreads = np.maximum(MAD_TO_SD * deviations, self.floor * np.abs(levels))
        scaled = spreads != 0
        return {
            "level": levels,
            "shift": shifts,
            "deviation": deviations,
            "baseline": baselines,
            "onset_limit": np.where(
                scaled, all_within_reach(baselines + self.onset_z * spreads), NO_LIMIT
            ),
            "limit": np.where(scaled, all_within_reach(baselines + self.z * spreads), NO_LIMIT),
        }

    def follow(self, column: SpikeColumn, values: Array, figures: Figures) -> None:
        last = self._residuals(column, values, figures["level"])[-self.spread_steps :]
        column.residuals[:] = last.tolist()

    def _residuals(self, column: SpikeColumn, values: Array, levels: Array) -> Array:
        """Those remembered, those of the values since the last refresh, and of `values`."""
        first = column.planned - len(column.fresh)
        before = np.repeat(levels, self.refresh_steps)[: len(values) - first]
        fresh = np.concatenate([column.fresh, values[:first]]) - column.level
        return np.concatenate([column.residuals, fresh, values[first:] - before])
