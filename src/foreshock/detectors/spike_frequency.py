"""Report that outliers of the loss come more often than they used to."""

import dataclasses
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from foreshock.core.detector import Alarm, AlarmKind, Column, ScalarDetector, Steps, Threshold
from foreshock.core.errors import ConfigError
from foreshock.core.reference import Readings, Reference, finite_only

_SIZE, _EVERY = 128, 64
_FEW = 20
"""Excursions so far up to which shrinking intervals tell something: in a long run of them
some five come ever faster by chance."""


@dataclass(slots=True)
class FrequencyColumn(Column):
    """Memory of the recurrence rule for one series.

    Attributes:
        reference: what an outlier is told by.
        limit: the value beyond which a reading is one.
        num: finite readings so far.
        num_old: excursions that began before the recent window.
        recent: readings (by number) at which those of the recent window began.
        quiet_until: number of the reading up to which nothing is reported again.
    """

    reference: Reference = dataclasses.field(default_factory=lambda: Reference(1, 1))
    limit: float = math.inf
    num: int = 0
    num_old: int = 0
    recent: list[int] = dataclasses.field(default_factory=list[int])
    quiet_until: int = 0


@dataclass(frozen=True, kw_only=True)
class SpikeFrequency(ScalarDetector[FrequencyColumn]):
    """Report that excursions of the loss have become more frequent.

    An excursion is a run of readings above `median + z * max(spread, floor * |median|)` of
    the last 128 accepted readings. At the start of each, with `usual` the number that the
    run's own earlier rate lets expect,

        n > usual + 4 * sqrt(usual * (1 + ratio)) + 3   in the last `window_readings`, or
        the last five of them came ever faster: each interval at most `shrink` times the one before,
        and all in a third of the time that the earlier rate would need.

    The rate is that of all readings before the span that is judged, one excursion added;
    `ratio` is the window over their number, for the rate is an estimate itself. So
    outliers that come at the same rate all along are never reported; their number is high in
    healthy runs (2 % of all steps in a published 1B run).

    Args:
        z: deviations from the median, 6 as in the public skip rules.
        floor: smallest spread, as a share of the median.
        window_readings: 500. Longer sees slower changes of the rate.
        shrink: 0.75. Of intervals by chance four in a row shrink so once in 62.
        rebaseline_after_steps: readings of one excursion after which it is a new level.

    NaN and Inf are left to `nonfinite`, and count as no reading. Outliers never enter the
    128 readings.

    >>> import numpy as np
    >>> values = 2.5 + 0.02 * np.sin(1.7 * np.arange(900))
    >>> values[[500, 650, 750, 810, 850]] += 1.0
    >>> rule = SpikeFrequency()
    >>> _, alarms = rule.update(rule.init(["loss/global"]), np.arange(900), values[:, None])
    >>> [(alarm.step, alarm.onset_step) for alarm in alarms]
    [(850, 850)]

    Raises:
        ConfigError: a setting is out of its range.

    No source: our choice. OLMo's spike score is the share of outliers; it cannot tell a run
    that always had them from one that begins to. The limits are those of a Poisson count.
    """

    name: ClassVar[str] = "spike_frequency"
    advisory: ClassVar[bool] = True
    watches: tuple[str, ...] = ("loss",)
    every_scope: bool = False
    z: float = 6.0
    floor: float = 0.01
    window_readings: int = 500
    shrink: float = 0.75
    rebaseline_after_steps: int = 100

    def __post_init__(self) -> None:
        self.require_at_least(1, "window_readings", "rebaseline_after_steps")
        if not (0 < self.z < math.inf and 0 < self.floor < math.inf and 0 < self.shrink < 1):
            raise ConfigError(
                f"spike_frequency: z is {self.z}, floor {self.floor}, shrink {self.shrink}; "
                "needed is z > 0, floor > 0 and 0 < shrink < 1"
            )

    def start(self, series: str) -> FrequencyColumn:
        return FrequencyColumn(series, reference=Reference(_SIZE, _EVERY))

    def see(self, column: FrequencyColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        column.num += 1
        if value <= column.limit:
            if column.flagged:
                column.flagged.clear()
            if column.reference.add(value):
                self._set_limit(column)
            return None
        column.flagged.append(value)
        if len(column.flagged) >= self.rebaseline_after_steps:
            column.reference = Reference(_SIZE, _EVERY, values=column.flagged)
            column.flagged = []
            self._set_limit(column)
            return None
        if len(column.flagged) > 1:
            return None
        return self._begins(column, step, value)

    def skim(self, column: FrequencyColumn, steps: Steps, values: Readings) -> int:
        """Takes in the readings up to the next outlier."""
        reference = column.reference
        if column.flagged or not reference.is_full:
            return 0
        _, kept, places = finite_only(steps, values)
        ahead = reference.look_ahead(kept)
        limits = np.array(list(map(self._limit, ahead.centre.tolist(), ahead.spread.tolist())))
        over = kept > limits[ahead.age]
        count = int(np.argmax(over)) if over.any() else len(kept)
        if count:
            column.num += count
            reference.go(ahead, count)
            self._set_limit(column)
        if count == len(kept):
            return len(values)
        return count if places is None else int(places[count])

    def threshold(self, column: FrequencyColumn) -> Threshold:
        missing = column.reference.num_missing
        if missing:
            return Threshold(math.nan, math.nan, missing)
        return Threshold(column.reference.centre, math.inf, 0)

    def _limit(self, centre: float, spread: float) -> float:
        spread = max(spread, self.floor * abs(centre))
        return centre + self.z * spread if spread > 0 else math.inf

    def _set_limit(self, column: FrequencyColumn) -> None:
        column.limit = self._limit(column.reference.centre, column.reference.spread)

    def _begins(self, column: FrequencyColumn, step: int, value: float) -> Alarm | None:
        recent, now = column.recent, column.num
        recent.append(now)
        while recent[0] <= now - self.window_readings:
            del recent[0]
            column.num_old += 1
        if now < column.quiet_until or not (self._are_many(column) or self._come_faster(column)):
            return None
        column.quiet_until = now + self.window_readings
        return Alarm(
            kind=AlarmKind.RECURRENCE,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=step,
            value=value,
            baseline=column.reference.centre,
            threshold=column.limit,
        )

    def _are_many(self, column: FrequencyColumn) -> bool:
        earlier = column.num - self.window_readings - _EVERY  # in the first none can be seen
        if earlier < self.window_readings:
            return False
        ratio = self.window_readings / earlier
        usual = (column.num_old + 1) * ratio
        return len(column.recent) > usual + 4.0 * math.sqrt(usual * (1.0 + ratio)) + 3.0

    def _come_faster(self, column: FrequencyColumn) -> bool:
        last = column.recent[-5:]
        num_before = column.num_old + len(column.recent) - 5
        if len(last) < 5 or num_before + 5 > _FEW:
            return False
        intervals = [later - earlier for earlier, later in pairwise(last)]
        shrinking = all(b <= self.shrink * a for a, b in pairwise(intervals))
        usual = (num_before + 1) * (last[-1] - last[0]) / last[0]
        return shrinking and usual <= 4 / 3
