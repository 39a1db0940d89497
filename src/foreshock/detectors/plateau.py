"""Report a loss that does not move, or has never got below where it began."""

import dataclasses
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
from foreshock.core.reference import Readings, centre_and_spread, finite_only

_OPENING, _BLOCK = 3, 20


@dataclass(slots=True)
class PlateauColumn(Column):
    """Memory of the plateau rule for one series.

    Attributes:
        last: the last finite reading.
        same: how many in a row were exactly that one.
        same_step: step of the first of them.
        same_due: how many are reported next; doubles each time.
        has_moved: whether the series was ever anything else.
        opening: the first readings, each with its step.
        pending: readings of the block that is not full yet.
        best: the lowest block median.
        num: finite readings so far.
        num_due: how many are judged next; doubles each time.
        has_learned: whether the loss has ever got below where it began, or cannot be judged.
    """

    last: float = 0.0
    same: int = 0
    same_step: int = 0
    same_due: int = 0
    has_moved: bool = False
    opening: list[tuple[int, float]] = dataclasses.field(default_factory=list[tuple[int, float]])
    pending: list[float] = dataclasses.field(default_factory=list[float])
    best: float = math.inf
    num: int = 0
    num_due: int = 0
    has_learned: bool = False


@dataclass(frozen=True, kw_only=True)
class Plateau(ScalarDetector[PlateauColumn]):
    """Report a dead loss, or one that has never learned.

    Dead: exactly the same value for `same_readings` in a row, or exactly 0.0 for
    `zero_readings`. Never learned: after `patience_readings` no median of 20 readings was
    below the run's opening (the median of its first 3 readings) by `share` of it. Each is
    told again when twice as many readings have passed.

    A converged run is flat, too; so of a loss that has once come down nothing is said while
    it still varies. A log that begins in mid-run (its first step lies beyond twice the
    distance of its first two) is not judged by its opening, nor is a loss that opens below
    `least`: some objectives are near zero by design.

    Args:
        same_readings: 100. Fewer would call a loss dead whose log prints two digits.
        zero_readings: 8. Exactly zero is an artefact: all labels masked, a NaN that a logger
            hides, an objective that was optimised away. Fewer would judge a log of a
            handful of lines.
        patience_readings: 100 readings, so that a long warm-up has begun to bite.
        share: 1 % of the opening. More would call slow fine-tuning dead.
        least: in nats.

    NaN and Inf are left to `nonfinite`, and count as no reading.

    >>> import numpy as np
    >>> rule = Plateau()
    >>> values = np.array([3.0, 2.0] + [0.0] * 17)[:, None]
    >>> _, alarms = rule.update(rule.init(["loss/global"]), np.arange(19), values)
    >>> [(alarm.step, alarm.onset_step) for alarm in alarms]
    [(9, 2), (17, 2)]

    Raises:
        ConfigError: a setting is out of its range.

    No source: our choice, because a causal rule cannot know how low a loss should get; these
    are the two cases in which it need not.
    """

    name: ClassVar[str] = "plateau"
    advisory: ClassVar[bool] = True
    watches: tuple[str, ...] = ("loss",)
    every_scope: bool = False
    same_readings: int = 100
    zero_readings: int = 8
    patience_readings: int = 100
    share: float = 0.01
    least: float = 0.1

    def __post_init__(self) -> None:
        self.require_at_least(2, "same_readings", "zero_readings")
        self.require_at_least(20, "patience_readings")
        if not 0 < self.share < 1 or not self.least >= 0:
            raise ConfigError(
                f"plateau.share is {self.share} and least is {self.least}; needed is "
                "0 < share < 1 and least >= 0"
            )

    def start(self, series: str) -> PlateauColumn:
        return PlateauColumn(series, num_due=self.patience_readings)

    def see(self, column: PlateauColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        column.num += 1
        if value == column.last and column.same:
            column.same += 1
            if column.same == column.same_due:
                column.same_due *= 2
                return self._alarm(column, step, value, column.same_step, math.nan)
        else:
            column.has_moved = column.has_moved or column.same > 0
            column.last = value
            column.same, column.same_step = 1, step
            column.same_due = self._due(value)
        if column.has_learned:
            return None
        return self._look(column, step, value)

    def skim(self, column: PlateauColumn, steps: Steps, values: Readings) -> int:
        if not column.has_learned:
            return 0
        steps, kept, places = finite_only(steps, values)
        if not len(kept):
            return len(values)
        begins = np.flatnonzero(np.diff(kept, prepend=column.last) != 0)
        lengths = np.diff(begins, append=len(kept))
        carried = int(begins[0]) if len(begins) else len(kept)
        if column.same < column.same_due <= column.same + carried:
            return 0
        due = np.where(kept[begins] == 0, self.zero_readings, self.same_readings)
        told = np.flatnonzero(lengths >= due)
        count = int(begins[told[0]]) if len(told) else len(kept)
        column.num += count
        before = int(np.searchsorted(begins, count))
        if before == 0:
            column.same += count
        else:
            first = int(begins[before - 1])
            column.has_moved = True
            column.last = float(kept[first])
            column.same, column.same_step = count - first, int(steps[first])
            column.same_due = self._due(column.last)
        if count == len(kept):
            return len(values)
        return count if places is None else int(places[count])

    def threshold(self, column: PlateauColumn) -> Threshold:
        return Threshold(math.nan, math.inf, 0)

    def _due(self, value: float) -> int:
        return self.zero_readings if value == 0 else self.same_readings

    def _look(self, column: PlateauColumn, step: int, value: float) -> Alarm | None:
        """Whether a loss that has not come down yet has had its time."""
        if column.num <= _OPENING:
            column.opening.append((step, value))
        first = sorted(each for _, each in column.opening)[len(column.opening) // 2]
        if column.num == _OPENING:
            (begin, _), (second, _), _ = column.opening
            if begin > 2 * (second - begin) or first < self.least:
                column.has_learned = True
                return None
        column.pending.append(value)
        limit = first * (1 - self.share)
        if len(column.pending) == _BLOCK:
            column.best = min(column.best, centre_and_spread(sorted(column.pending))[0])
            column.pending.clear()
            column.has_learned = column.best < limit
        if column.has_learned or column.num < column.num_due:
            return None
        column.num_due *= 2
        return self._alarm(column, step, value, column.opening[0][0], first)

    def _alarm(
        self, column: PlateauColumn, step: int, value: float, since: int, baseline: float
    ) -> Alarm:
        return Alarm(
            kind=AlarmKind.PLATEAU,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=max(since, step - ONSET_REACH_STEPS),
            value=value,
            baseline=baseline,
        )
