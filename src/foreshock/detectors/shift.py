"""Report a lasting change of level, up or down."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.blocks import Block, BlockColumn, BlockDetector
from foreshock.core.detector import ONSET_REACH_STEPS, Alarm, AlarmKind, Threshold

_SIDE = 4
"""Blocks on either side."""


@dataclass(slots=True)
class ShiftColumn(BlockColumn):
    """Memory of the shift rule for one series: its last blocks, oldest first.

    Attributes:
        levels: their medians.
        spreads: their robust standard deviations.
        steps: the steps of their first readings.
    """

    levels: list[float] = dataclasses.field(default_factory=list[float])
    spreads: list[float] = dataclasses.field(default_factory=list[float])
    steps: list[int] = dataclasses.field(default_factory=list[int])


@dataclass(frozen=True, kw_only=True)
class Shift(BlockDetector[ShiftColumn]):
    """Report, once, that the level has changed for good, up or down.

    The last 64 readings are 8 blocks of 8, each with median and spread. Before and after are
    four blocks each; alarm if all four after lie beyond all four before, on one side, and

        |level after - level before| - explained > max(z * spread, share * |level before|)

    `level` is the mean of the middle two of four block medians, `spread` the larger of the
    two sides' (mean of the middle two likewise). A trend counts as none: what the steeper of
    the slopes within the two sides explains is subtracted. After an alarm the new level alone
    is kept.

    Args:
        z: deviations of single readings. The difference of two such levels varies by 0.35 of
            one, so 3 is far in its tail; lower sees smaller shifts, and the wander of a
            series whose readings depend on each other.
        share: of the level: a change by less than a twentieth is data order.

    NaN and Inf are left to `nonfinite`, and count as no reading.

    >>> import numpy as np
    >>> values = np.where(np.arange(96) % 2, 2.52, 2.48)
    >>> values[48:] += 0.3
    >>> rule = Shift()
    >>> _, (alarm,) = rule.update(rule.init(["loss/global"]), np.arange(96), values[:, None])
    >>> alarm.step, alarm.onset_step, round(alarm.baseline, 6)
    (79, 48, 2.5)

    Raises:
        ConfigError: a setting is not above 0.

    No source: our choice. Two adjacent windows are the textbook form; separated blocks and the
    slope are there because the loss of a healthy run always falls.
    """

    name: ClassVar[str] = "shift"
    advisory: ClassVar[bool] = True
    block_readings: ClassVar[int] = 8
    watches: tuple[str, ...] = ("loss", "grad_norm")
    every_scope: bool = False
    z: float = 3.0
    share: float = 0.05

    def __post_init__(self) -> None:
        self.require_positive("z", "share")

    def start(self, series: str) -> ShiftColumn:
        return ShiftColumn(series)

    def take(self, column: ShiftColumn, level: float, spread: float, first_step: int) -> bool:
        levels = column.levels
        if len(levels) == 2 * _SIDE - 1:
            # The cheap half of the rule first: it holds for one block in 35 of mere noise.
            a, b, c, d, e, f, g = levels
            if (
                (level > a and min(e, f, g, level) > max(a, b, c, d))
                or (level < a and max(e, f, g, level) < min(a, b, c, d))
            ) and self._has_shifted([*levels, level], [*column.spreads, spread]):
                return False
            del levels[0], column.spreads[0], column.steps[0]
        levels.append(level)
        column.spreads.append(spread)
        column.steps.append(first_step)
        return True

    def judge(self, column: ShiftColumn, block: Block, step: int, value: float) -> Alarm | None:
        before = _middle(column.levels[:_SIDE])
        column.levels = [*column.levels[_SIDE:], block.level]
        column.spreads = [*column.spreads[_SIDE:], block.spread]
        column.steps = [*column.steps[_SIDE:], block.first_step]
        return Alarm(
            kind=AlarmKind.SHIFT,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=max(column.steps[0], step - ONSET_REACH_STEPS),
            value=value,
            baseline=before,
        )

    def threshold(self, column: ShiftColumn) -> Threshold:
        missing = (2 * _SIDE - 1 - len(column.levels)) * self.block_readings
        if missing > 0:
            return Threshold(math.nan, math.nan, missing - len(column.pending))
        return Threshold(_middle(column.levels[-_SIDE:]), math.inf, 0)

    def _has_shifted(self, levels: list[float], spreads: list[float]) -> bool:
        """Whether eight blocks, all of one side beyond all of the other, are a shift."""
        before, after = _middle(levels[:4]), _middle(levels[4:])
        slopes = [
            0.5 * levels[at + 2] + 0.5 * levels[at + 3] - 0.5 * levels[at] - 0.5 * levels[at + 1]
            for at in (0, 4)
        ]
        way = 1.0 if after > before else -1.0
        explained = 2.0 * max(0.0, way * slopes[0], way * slopes[1])
        spread = max(_middle(spreads[:4]), _middle(spreads[4:]))
        left = way * (after - before) - explained
        return left > max(self.z * spread, self.share * abs(before))


def _middle(four: list[float]) -> float:
    """The median of four."""
    _, low, high, _ = sorted(four)
    return 0.5 * low + 0.5 * high
