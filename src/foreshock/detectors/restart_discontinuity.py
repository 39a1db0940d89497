"""Report a jump or a drop between the readings before and after a restart."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from foreshock.core.detector import (
    ONSET_REACH_STEPS,
    Alarm,
    AlarmKind,
    Column,
    ScalarDetector,
    Steps,
    Threshold,
)
from foreshock.core.reference import Readings, centre_and_spread, finite_only


@dataclass(slots=True)
class RestartColumn(Column):
    """Memory of the restart rule for one series.

    Attributes:
        before: the last readings, trimmed when there are twice as many as are needed.
        after: the first ones after a restart.
        is_waiting: whether a restart is still to be judged.
        first_step: step of the first reading after it.
    """

    before: list[float] = dataclasses.field(default_factory=list[float])
    after: list[float] = dataclasses.field(default_factory=list[float])
    is_waiting: bool = False
    first_step: int = 0


@dataclass(frozen=True, kw_only=True)
class RestartDiscontinuity(ScalarDetector[RestartColumn]):
    """Report a restart after which the series goes on at another level, higher or lower.

        |median(first after_readings) - median| > max(z * spread, share * |median|)

    with median and spread of the last `before_readings`. Judged once, at the last of the
    readings after the restart. A loss that is too low is as bad a sign as one that is too
    high: the data order was lost, and samples are seen twice. Without a restart nothing is
    ever reported.

    Args:
        before_readings: 32, so that a falling loss falls little within them.
        after_readings: 5. Lost optimizer state shows within 6 steps; fewer would be noise.
        z: deviations of single readings; a median of 5 varies by half of one, so 3 is six of
            its own.
        share: of the level: 2 %. A wrong data order or a lost optimizer state moves the loss
            by 2 to 25 % in experiments; a good restart by less than its noise.

    NaN and Inf are left to `nonfinite`, and count as no reading. With fewer than half of
    `before_readings` nothing is judged.

    >>> import numpy as np
    >>> rule = RestartDiscontinuity()
    >>> calm = np.where(np.arange(40) % 2, 2.51, 2.49)[:, None]
    >>> state, _ = rule.update(rule.init(["loss/global"]), np.arange(40), calm)
    >>> state = rule.resumed(state)
    >>> _, alarms = rule.update(state, np.arange(40, 50), calm[:10] - 0.3)
    >>> [(alarm.step, alarm.onset_step, round(alarm.value, 6)) for alarm in alarms]
    [(44, 40, 2.19)]

    Raises:
        ConfigError: a setting is out of its range.

    No source: our choice, because a sudden drop after a restart is told of in post-mortems
    (a sampler that lost its state) and no public monitor looks for it.
    """

    name: ClassVar[str] = "restart_discontinuity"
    advisory: ClassVar[bool] = True
    watches: tuple[str, ...] = ("loss", "grad_norm")
    every_scope: bool = False
    before_readings: int = 32
    after_readings: int = 5
    z: float = 3.0
    share: float = 0.02

    def __post_init__(self) -> None:
        self.require_at_least(1, "before_readings", "after_readings")
        self.require_positive("z", "share")

    def start(self, series: str) -> RestartColumn:
        return RestartColumn(series)

    def resumed(self, state: Any) -> Any:
        for column in state:
            # What came after an earlier restart that was not judged is not known to be sound.
            column.after, column.is_waiting = [], True
        return state

    def see(self, column: RestartColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        if column.is_waiting:
            return self._after_restart(column, step, value)
        before = column.before
        before.append(value)
        if len(before) == 2 * self.before_readings:
            del before[: self.before_readings]
        return None

    def skim(self, column: RestartColumn, steps: Steps, values: Readings) -> int:
        if column.is_waiting:
            return 0
        _, kept, _ = finite_only(steps, values)
        size = self.before_readings
        total = len(column.before) + len(kept)
        keep = total if total < 2 * size else size + total % size
        column.before = [*column.before, *kept[-2 * size :].tolist()][-keep:] if keep else []
        return len(values)

    def threshold(self, column: RestartColumn) -> Threshold:
        missing = (self.before_readings + 1) // 2 - len(column.before)
        if missing > 0:
            return Threshold(math.nan, math.nan, missing)
        return Threshold(centre_and_spread(sorted(self._last(column)))[0], math.inf, 0)

    def _last(self, column: RestartColumn) -> list[float]:
        return column.before[-self.before_readings :]

    def _after_restart(self, column: RestartColumn, step: int, value: float) -> Alarm | None:
        after = column.after
        if not after:
            column.first_step = step
        after.append(value)
        if len(after) < self.after_readings:
            return None
        column.after, column.is_waiting = [], False
        last = self._last(column)
        if len(last) < (self.before_readings + 1) // 2:
            column.before = [*last, *after]
            return None
        level, spread = centre_and_spread(sorted(last))
        now, _ = centre_and_spread(sorted(after))
        most = max(self.z * spread, self.share * abs(level))
        if not abs(now - level) > most:
            column.before = [*last, *after][-self.before_readings :]
            return None
        column.before = after
        return Alarm(
            kind=AlarmKind.DISCONTINUITY,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=max(column.first_step, step - ONSET_REACH_STEPS),
            value=now,
            baseline=level,
            threshold=level + most if now > level else level - most,
        )
