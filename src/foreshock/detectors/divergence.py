"""Alarm on a loss that has left its trend for good."""

import dataclasses
import math
from dataclasses import dataclass
from operator import sub
from typing import ClassVar

from foreshock.core.blocks import Block, BlockColumn, BlockDetector
from foreshock.core.detector import ONSET_REACH_STEPS, Alarm, AlarmKind, Steps, Threshold
from foreshock.core.reference import Readings, centre_and_spread

_BEST, _KEPT = 5, 33
"""Levels in the best one, and levels remembered."""

_DUE_YOUNG, _DUE = 4, 8
"""New levels between two looks at them, while they are few and later on."""


@dataclass(slots=True)
class DivergenceColumn(BlockColumn):
    """Memory of the divergence rule for one series.

    Attributes:
        levels: the last calm levels, oldest first.
        num_new: how many of them are newer than the limits.
        start: the level of the first block, 0 before.
        best: the lowest level that the run has held.
        limit: level beyond which a block is high; infinite while there is none.
        jump_limit: level at which three readings in a row are enough.
        num_high: high blocks in a row.
        high_step: first step of the first of them.
    """

    levels: list[float] = dataclasses.field(default_factory=list[float])
    num_new: int = 0
    start: float = 0.0
    best: float = math.inf
    limit: float = math.inf
    jump_limit: float = math.inf
    num_high: int = 0
    high_step: int = 0


@dataclass(frozen=True, kw_only=True)
class Divergence(BlockDetector[DivergenceColumn]):
    """Alarm when the loss stays far above the best level that it has held.

        level = median of a block of 8 readings
        best  = lowest median of the last 5 calm levels, looked at every 4 to 8
        limit = best + max(share * best, gain_share * (start - best), rise, z * s)

    with s the robust standard deviation of what the last 33 calm levels moved by. After
    `patience_blocks` blocks in a row above the limit every reading above it is flagged, until
    a block is back. Three readings in a row at or above the level where the run started
    are enough, once it had been a third below: that model is destroyed.

    Its alarms may roll a run back, so each of the four margins guards against one thing that
    healthy runs do. A loss that is ever zero or negative (a policy's) has no scale and is not
    watched.

    Args:
        share: of the best level. Public post-mortems speak of divergence at +15 to +100 % of
            the level; epochs and data order move a loss by up to 10 %.
        gain_share: of all that was gained. A loss of 0.01 has doubled when it is 0.02, and
            has lost nothing.
        rise: in nats; a loss that is near zero by design moves by less.
        z: deviations of the level: a batch of one sample varies by a fifth and more.
        patience_blocks: 4 blocks are 32 readings, as long as the published spikes that healed
            by themselves (BLOOM: 30 steps). Fewer act earlier, on some that would heal.
        rebaseline_after_steps: consecutive flagged readings after which their level is the
            new normal, reported once as a shift.

    NaN and Inf are left to `nonfinite` and never enter a level. Nothing is judged in the
    first 5 blocks.

    >>> import numpy as np
    >>> rule = Divergence()
    >>> values = np.array([3.0] * 80 + [4.0] * 34)[:, None]
    >>> _, alarms = rule.update(rule.init(["loss/global"]), np.arange(len(values)), values)
    >>> [(alarm.step, alarm.onset_step, round(alarm.threshold, 6)) for alarm in alarms]
    [(111, 80, 3.6), (112, 80, 3.6), (113, 80, 3.6)]

    Raises:
        ConfigError: a setting is out of its range.

    No source: our choice, because the public rules (a multiple of the last or the mean loss)
    either miss a lasting rise by half or take each hard batch for one; compared on synthetic
    runs in tests/detectors/test_divergence.py.
    """

    name: ClassVar[str] = "divergence"
    block_readings: ClassVar[int] = 8
    watches: tuple[str, ...] = ("loss",)
    every_scope: bool = False
    share: float = 0.2
    gain_share: float = 0.1
    rise: float = 0.1
    z: float = 5.0
    patience_blocks: int = 4
    rebaseline_after_steps: int = 100

    def __post_init__(self) -> None:
        self.require_at_least(1, "patience_blocks", "rebaseline_after_steps")
        self.require_positive("share", "gain_share", "rise", "z")

    def start(self, series: str) -> DivergenceColumn:
        return DivergenceColumn(series)

    def take(self, column: DivergenceColumn, level: float, spread: float, first_step: int) -> bool:
        if column.num_high or level > column.limit:
            return False
        column.levels.append(level)
        column.num_new += 1
        count = len(column.levels)
        if count >= _BEST and column.num_new >= (_DUE_YOUNG if count < _KEPT else _DUE):
            self._look(column)
        return True

    def judge(
        self, column: DivergenceColumn, block: Block, step: int, value: float
    ) -> Alarm | None:
        if block.level > column.limit:
            if column.num_high == 0:
                column.high_step = block.first_step
            column.num_high += 1
            if column.num_high == self.patience_blocks:
                column.glance_limit = min(column.glance_limit, column.limit)
            return self.glance(column, step, value)
        if self._has_jumped(column):
            return self._flag(column, step, value)
        column.num_high = 0
        column.glance_limit = column.jump_limit
        column.flagged.clear()
        if block.held < column.jump_limit:
            self.take(column, block.level, block.spread, block.first_step)
        return None

    def glance(self, column: DivergenceColumn, step: int, value: float) -> Alarm | None:
        lasting = column.num_high >= self.patience_blocks and value > column.limit
        if lasting or self._has_jumped(column):
            return self._flag(column, step, value)
        return None

    def skim(self, column: DivergenceColumn, steps: Steps, values: Readings) -> int:
        return 0 if column.num_high else super().skim(column, steps, values)

    def threshold(self, column: DivergenceColumn) -> Threshold:
        missing = (_BEST - len(column.levels)) * self.block_readings - len(column.pending)
        if missing > 0:
            return Threshold(math.nan, math.nan, missing)
        return Threshold(column.best, math.inf, 0)

    def _look(self, column: DivergenceColumn) -> None:
        """Set the limits by the levels that are remembered."""
        levels = column.levels
        if column.best == math.inf:
            column.start = levels[0]
        column.num_new = 0
        del levels[:-_KEPT]
        column.best = min(column.best, sorted(levels[-_BEST:])[_BEST // 2])
        if min(levels) <= 0 or column.start <= 0:
            column.start = 0.0  # from now on it has no scale
            column.limit = column.jump_limit = column.glance_limit = math.inf
            return
        _, moved = centre_and_spread(sorted(map(sub, levels[1:], levels)))
        gained = column.start - column.best
        column.limit = column.best + max(
            self.share * column.best, self.gain_share * gained, self.rise, self.z * moved
        )
        far_below = gained > column.start / 3
        column.jump_limit = max(column.start, column.limit) if far_below else math.inf
        column.glance_limit = column.jump_limit

    def _has_jumped(self, column: DivergenceColumn) -> bool:
        last = column.pending[-3:]
        return len(last) == 3 and min(last) >= column.jump_limit

    def _flag(self, column: DivergenceColumn, step: int, value: float) -> Alarm:
        if not column.num_high:
            column.high_step = column.pending_step
        baseline, limit = column.best, column.limit
        column.flagged.append(value)
        kind = AlarmKind.DIVERGENCE
        if len(column.flagged) >= self.rebaseline_after_steps:
            kind = AlarmKind.SHIFT
            column.best, _ = centre_and_spread(sorted(column.flagged))
            column.levels = [column.best] * _BEST
            column.flagged = []
            column.num_high = 0
            self._look(column)
        return Alarm(
            kind=kind,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=max(column.high_step, step - ONSET_REACH_STEPS),
            value=value,
            baseline=baseline,
            threshold=limit,
        )
