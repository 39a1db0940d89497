"""Alarm on a slow, lasting climb; for norms on a slow fall, too."""

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, log
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

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
from foreshock.core.names import split_series
from foreshock.core.reference import Readings, Reference, finite_only

Whole = NDArray[np.int64]

_PARTS = 64
"""Deviations are counted in whole 64ths of the spread, so that sums are exact in any order."""

_SMOOTHEST = 0.2
"""Roughness below which a series creeps by itself, as a running mean does: not judged."""

_EVEN = 0.7
"""Roughness from which on a series counts as white noise: the estimate varies by a fifth."""


@dataclass(slots=True)
class DriftColumn(Column):
    """Memory of the drift rule for one series.

    Attributes:
        reference: what is compared with, on the rule's scale.
        is_loss: whether only a climb counts, and the value is taken as it is.
        steady: whether the series has once held a level, as is asked of norms.
        factor: what turns a deviation into 64ths of the spread; 0 where there is no scale.
        limit: the sum that alarms, in 64ths of the spread.
        up: sum of deviations above, in 64ths of the spread.
        down: sum of deviations below.
        up_since: step at which `up` last left zero, -1 while it is zero.
        down_since: likewise.
    """

    reference: Reference = dataclasses.field(default_factory=lambda: Reference(1, 1))
    is_loss: bool = True
    steady: bool = False
    factor: float = 0.0
    limit: float = math.inf
    up: int = 0
    down: int = 0
    up_since: int = -1
    down_since: int = -1


@dataclass(frozen=True, kw_only=True)
class Drift(ScalarDetector[DriftColumn]):
    """Alarm when small deviations to one side add up: Page's cumulative sum, made robust.

        z = clip((x - median) / max(spread, floor), -clip, clip)
        up = max(0, up + z - slack)          alarm at up >= limit / evenness

    Median and spread are those of the last `window_readings` accepted readings. A signal
    other than the loss is taken by its logarithm, and watched for a fall as well, once it has
    held a level (the medians of the halves of the window within half a spread): in warm-up every
    norm falls. For the loss falling is the aim, so only a climb counts. `evenness` is
    `r / (2 - r)` for a roughness r: the share of readings that are independent in a series
    that creeps, as a running mean does; 1 for white noise.

    Args:
        window_readings: 192, as the 200 of trainscope. Longer sees slower drifts, and takes
            longer to forget a level.
        refresh_readings: readings between two looks at the window, and the warm-up.
        slack: deviations that are free: half of the smallest lasting change that is to be
            found at once (2 spreads); 1 in trainscope.
        limit: 6 as there. With slack 1 a Gaussian passes it once in 8e5 readings (Siegmund).
        limit_log: of what is taken by its logarithm: twice as much, since the norms of real
            runs hang together from step to step (a correlation of a third at lag 1) and have
            heavy tails; at 6 one of them alarmed 30 times in 10,000 steps.
        clip: one reading adds at most clip - slack = 1.5, so that it takes four in a row to
            alarm and no outlier, however large, alarms alone.
        floor: smallest spread of the loss, as a share of its level: below two in a thousand
            a climb says nothing.
        floor_log: smallest spread of what is taken by its logarithm: 5 %.
        rebaseline_after_steps: consecutive flagged readings after which their level is the
            new normal, reported once as a shift.

    NaN, Inf and, on the logarithmic scale, what is not positive are passed over; `nonfinite`
    speaks for them. Flagged readings never enter the window.

    >>> import numpy as np
    >>> rule = Drift()
    >>> values = 2.5 + 0.02 * np.sin(1.7 * np.arange(90))
    >>> values[80:] += 0.2
    >>> _, alarms = rule.update(rule.init(["loss/global"]), np.arange(90), values[:, None])
    >>> [(alarm.step, alarm.onset_step) for alarm in alarms][:2]
    [(83, 80), (84, 80)]

    Raises:
        ConfigError: a setting is out of its range.

    Reference: Page 1954, Continuous inspection schemes; window, slack and limit as in
    trainscope's change-point detector. Clipping, the logarithm and the evenness are our
    choice, measured in tests/detectors/test_drift.py.
    """

    name: ClassVar[str] = "drift"
    advisory: ClassVar[bool] = True
    watches: tuple[str, ...] = ("loss", "grad_norm", "update_ratio")
    every_scope: bool = False
    window_readings: int = 192
    refresh_readings: int = 64
    slack: float = 1.0
    limit: float = 6.0
    limit_log: float = 12.0
    clip: float = 2.5
    floor: float = 0.002
    floor_log: float = 0.05
    rebaseline_after_steps: int = 100

    def __post_init__(self) -> None:
        self.require_at_least(1, "window_readings", "refresh_readings", "rebaseline_after_steps")
        if self.refresh_readings > self.window_readings:
            raise ConfigError(
                f"drift.refresh_readings is {self.refresh_readings}; it must be at most "
                f"window_readings, {self.window_readings}"
            )
        if not 0 < self.slack < self.clip:
            raise ConfigError(
                f"drift.slack is {self.slack} and clip is {self.clip}; needed is 0 < slack < clip"
            )
        self.require_positive("limit", "limit_log", "floor", "floor_log")

    def start(self, series: str) -> DriftColumn:
        is_loss = split_series(series)[0].startswith("loss")
        return DriftColumn(series, reference=self._window(), is_loss=is_loss, steady=is_loss)

    def see(self, column: DriftColumn, step: int, value: float) -> Alarm | None:
        if not isfinite(value):
            return None
        x = value
        if not column.is_loss:
            if value <= 0:
                return None
            x = log(value)
        reference = column.reference
        if column.factor:
            slack, most = self._whole
            z = (x - reference.centre) * column.factor
            move = int(most if z > most else -most if z < -most else z)
            up = column.up + move - slack
            if up > 0:
                if column.up == 0:
                    column.up_since = step
                column.up = up
            elif column.up:
                column.up, column.up_since = 0, -1
            if not column.is_loss:
                self._add_down(column, step, -move - slack)
            if column.up >= column.limit or column.down >= column.limit:
                return self._alarm(column, step, value, x)
            if column.flagged:
                column.flagged.clear()
        if reference.add(x):
            self._refreshed(column)
        return None

    @cached_property
    def _whole(self) -> tuple[int, int]:
        """Slack and clip in 64ths."""
        return int(self.slack * _PARTS), int(self.clip * _PARTS)

    @staticmethod
    def _add_down(column: DriftColumn, step: int, downwards: int) -> None:
        down = column.down + downwards
        if down > 0:
            if column.down == 0:
                column.down_since = step
            column.down = down
        elif column.down:
            column.down, column.down_since = 0, -1

    def skim(self, column: DriftColumn, steps: Steps, values: Readings) -> int:
        reference = column.reference
        if column.flagged or not column.steady or not reference.is_full:
            return 0
        kept_steps, kept, places = finite_only(steps, values)
        if not column.is_loss:
            if not (kept > 0).all():
                return 0
            kept = np.fromiter(map(log, kept.tolist()), np.float64, len(kept))
        ahead = reference.look_ahead(kept)
        scales = [
            self._factor_and_limit(column.is_loss, *figures)
            for figures in zip(
                ahead.centre.tolist(), ahead.spread.tolist(), ahead.roughness.tolist(), strict=True
            )
        ]
        factors, limits = (np.array(part) for part in zip(*scales, strict=True))
        factor, limit = factors[ahead.age], limits[ahead.age]
        slack, most = self._whole
        with np.errstate(over="ignore", invalid="ignore"):
            z = np.clip((kept - ahead.centre[ahead.age]) * factor, -most, most)
            judged = factor != 0
            parts = np.where(judged, z, 0.0).astype(np.int64)
        up = _sums(column.up, np.where(judged, parts - slack, 0))
        down = _sums(column.down, np.where(judged, -parts - slack, 0))
        over = up >= limit if column.is_loss else np.maximum(up, down) >= limit
        count = int(np.argmax(over)) if over.any() else len(kept)
        if count:
            column.up_since = _left_zero(column.up, column.up_since, up[:count], kept_steps)
            column.up = int(up[count - 1])
            if not column.is_loss:
                since = _left_zero(column.down, column.down_since, down[:count], kept_steps)
                column.down, column.down_since = int(down[count - 1]), since
            reference.go(ahead, count)
            column.factor, column.limit = self._scale(column)
        if count == len(kept):
            return len(values)
        return count if places is None else int(places[count])

    def threshold(self, column: DriftColumn) -> Threshold:
        reference = column.reference
        if not reference.ready:
            return Threshold(math.nan, math.nan, reference.num_missing)
        centre = reference.centre
        if not column.is_loss:
            centre = math.exp(min(centre, 709.0))
        return Threshold(centre, math.inf, 0)

    def _window(self, values: list[float] | None = None) -> Reference:
        return Reference(self.window_readings, self.refresh_readings, rough=True, values=values)

    def _scale(self, column: DriftColumn) -> tuple[float, float]:
        now = column.reference
        if now.roughness < _EVEN and not now.is_full:
            return 0.0, math.inf  # a short piece of a series that creeps has no spread to go by
        return self._factor_and_limit(column.is_loss, now.centre, now.spread, now.roughness)

    def _refreshed(self, column: DriftColumn) -> None:
        """Work out the scale anew, for a series that has once held a level."""
        reference = column.reference
        if not column.steady and reference.is_full:
            older, newer = reference.halves()
            column.steady = abs(newer - older) <= 0.5 * max(reference.spread, self.floor_log)
        if column.steady:
            column.factor, column.limit = self._scale(column)

    def _factor_and_limit(
        self, is_loss: bool, centre: float, spread: float, roughness: float
    ) -> tuple[float, float]:
        """What turns a deviation into 64ths of the spread, and where the sum alarms."""
        floor = self.floor * abs(centre) if is_loss else self.floor_log
        spread = spread if spread > floor else floor
        if spread < 1e-300 or roughness < _SMOOTHEST:
            return 0.0, math.inf
        evenness = 1.0 if roughness >= _EVEN else roughness / (2.0 - roughness)
        limit = self.limit if is_loss else self.limit_log
        return _PARTS / spread, limit * _PARTS / evenness

    def _alarm(self, column: DriftColumn, step: int, value: float, x: float) -> Alarm:
        since = column.up_since if column.up >= column.limit else column.down_since
        baseline = self.threshold(column).baseline
        most = math.ceil(column.limit)  # or a recovery would go on alarming
        column.up, column.down = min(column.up, most), min(column.down, most)
        column.flagged.append(x)
        kind = AlarmKind.DRIFT
        if len(column.flagged) >= self.rebaseline_after_steps:
            column.reference = self._window(column.flagged)
            column.flagged = []
            column.up, column.up_since = 0, -1
            column.down, column.down_since = 0, -1
            self._refreshed(column)
            kind = AlarmKind.SHIFT
        return Alarm(
            kind=kind,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=max(since, step - ONSET_REACH_STEPS),
            value=value,
            baseline=baseline,
        )


def _sums(before: int, moves: Whole) -> Whole:
    """The cumulative sums that are held at zero from below: exact, for they are whole."""
    free = before + np.cumsum(moves)
    return free - np.minimum(np.minimum.accumulate(free), 0)


def _left_zero(before: int, since: int, sums: Whole, steps: Steps) -> int:
    """The step at which the last of these sums left zero, -1 if it is there."""
    if sums[-1] == 0:
        return -1
    zeros = np.flatnonzero(sums == 0)
    if len(zeros):
        return int(steps[zeros[-1] + 1])
    return since if before else int(steps[0])
