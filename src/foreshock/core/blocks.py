"""The shared frame of rules that judge a series by blocks of readings."""

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from foreshock.core.detector import Alarm, Column, ScalarDetector, Steps
from foreshock.core.reference import Readings, centre_and_spread, finite_only
from foreshock.core.reference import rows_centre_and_spread as of_rows


class Block(NamedTuple):
    """What is left of some readings in a row.

    Attributes:
        level: their median.
        spread: their robust standard deviation.
        first_step: step of the first.
        held: the highest level that three in a row did not go below.
    """

    level: float
    spread: float
    first_step: int
    held: float


@dataclass(slots=True)
class BlockColumn(Column):
    """Memory of a block rule for one series.

    Attributes:
        pending: finite readings of the block that is not full yet.
        pending_step: step of the first of them.
        glance_limit: level from which on single readings are looked at.
    """

    pending: list[float] = dataclasses.field(default_factory=list[float])
    pending_step: int = 0
    glance_limit: float = math.inf


B = TypeVar("B", bound=BlockColumn)


class BlockDetector(ScalarDetector[B]):
    """A rule that judges the medians of blocks of `block_readings` finite readings.

    A median of a few readings ignores the outliers among them and costs little. A concrete
    rule gives `take`, which takes in a block that changes nothing, and `judge`, for the
    blocks that `take` refused; NaN and Inf never come to either.

    Attributes:
        block_readings: finite readings in a block, at least 3.
    """

    block_readings: ClassVar[int]

    @abstractmethod
    def take(self, column: B, level: float, spread: float, first_step: int) -> bool:
        """Take in a calm block; False, with `column` as it was, if it is not calm."""

    @abstractmethod
    def judge(self, column: B, block: Block, step: int, value: float) -> Alarm | None:
        """Take in a block that is not calm; `value` at `step` was its last reading."""

    def glance(self, column: B, step: int, value: float) -> Alarm | None:
        """Look at a reading at or above `glance_limit` that does not end its block.

        It may alarm if at least three in a row were there; `pending` includes it.
        """
        return None

    def see(self, column: B, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            return None
        pending = column.pending
        if not pending:
            column.pending_step = step
        pending.append(value)
        if len(pending) < self.block_readings:
            return None if value < column.glance_limit else self.glance(column, step, value)
        level, spread = centre_and_spread(sorted(pending))
        held = -math.inf if column.glance_limit == math.inf else _held(pending)
        alarm = None
        if held >= column.glance_limit or not self.take(column, level, spread, column.pending_step):
            block = Block(level, spread, column.pending_step, held)
            alarm = self.judge(column, block, step, value)
        pending.clear()
        return alarm

    def skim(self, column: B, steps: Steps, values: Readings) -> int:
        steps, kept, places = finite_only(steps, values)
        size, waiting = self.block_readings, len(column.pending)
        joined = np.concatenate([np.array(column.pending), kept])
        count = len(joined) // size
        rows = joined[: count * size].reshape(count, size)
        level, spread = of_rows(np.sort(rows, axis=1))
        starts = np.maximum(np.arange(count) * size - waiting, 0)
        first_step = steps[starts]
        if count and waiting:
            first_step[0] = column.pending_step
        held = np.minimum(np.minimum(rows[:, 2:], rows[:, 1:-1]), rows[:, :-2]).max(axis=1)
        done = 0
        blocks = zip(
            level.tolist(), spread.tolist(), first_step.tolist(), held.tolist(), strict=True
        )
        for middle, width, begin, highest in blocks:
            if highest >= column.glance_limit or not self.take(column, middle, width, begin):
                break
            done += 1
        rest = joined[count * size :].tolist()
        whole = done == count and (len(rest) < 3 or _held(rest) < column.glance_limit)
        if whole:
            if rest and (done or not waiting):
                column.pending_step = int(steps[done * size - waiting])
            elif done:
                column.pending_step = int(first_step[-1])
            column.pending = rest
            return len(values)
        if done == 0:
            return 0
        column.pending = []
        column.pending_step = int(first_step[done - 1])
        taken = done * size - waiting
        return taken if places is None else int(places[taken - 1]) + 1


def _held(readings: list[float]) -> float:
    """The highest level that three readings in a row did not go below; at least three."""
    return max(map(min, readings, readings[1:], readings[2:]))
