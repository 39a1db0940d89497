"""The shared frame of rules that compare a value with a window of healthy ones."""

import dataclasses
import math
import sys
import zlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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
from foreshock.core.stats import Recent, row_medians, windows_at

HUGE = 1e300
"""What lies beyond is remembered as this much: differences and multiples stay finite."""

NO_LIMIT = sys.float_info.max
"""No finite value lies beyond; a state holds finite numbers only."""

_CLOSED = -NO_LIMIT
_SHARE = 16
"""A young run looks again when a sixteenth of what it knows has come in addition: its level
still falls, and its few residuals say little of how far a value may stray."""

Array = NDArray[np.float64]
Figures = Mapping[str, Array]
"""Numbers of a column by the name of the field, `[R]`: what they are after each refresh."""


@dataclass(slots=True)
class WindowColumn(Column):
    """Memory of a window rule for one series.

    Attributes:
        phase: where its refreshes lie on their schedule, from the name of the series.
        window: the last healthy values up to the last refresh, the oldest first.
        fresh: healthy values since.
        planned: how many of these make the next refresh.
        num_accepted: healthy values up to the last refresh.
        baseline: what is expected.
        onset_limit: beyond it an excursion begins.
        limit: beyond it a value is not taken in. Both are `NO_LIMIT` where there is none.
        gate: up to it a value is an ordinary one, which needs no more than taking in;
            nothing is while an excursion lasts.
    """

    phase: int = 0
    window: Recent = dataclasses.field(default_factory=Recent)
    fresh: list[float] = dataclasses.field(default_factory=list[float])
    planned: int = 1
    num_accepted: int = 0
    baseline: float = 0.0
    onset_limit: float = NO_LIMIT
    limit: float = NO_LIMIT
    gate: float = HUGE


W = TypeVar("W", bound=WindowColumn)


@dataclass(frozen=True, kw_only=True)
class WindowDetector(ScalarDetector[W], Generic[W]):
    """Judge a value by limits that follow the last healthy values, refreshed now and then.

    A window's figures hardly change with one value, so that the limits are renewed each
    `refresh_steps` healthy values, and in a young run each time a sixteenth has come in
    addition (one by one up to 32): between refreshes an ordinary value costs a comparison.
    Where in the schedule a series stands depends on its name alone, so that many series
    take turns, and none sees the others.

    Args:
        window_steps: healthy values that the level is taken from. More is steadier, but
            slower to follow a level that changes.
        refresh_steps: healthy values between two looks at the window. More costs less and
            follows later.
        warmup_steps: finite values needed before the first alarm.
        rebaseline_after_steps: flagged values in a row after which their level is accepted
            as the new normal, and reported once as a shift.

    Raises:
        ConfigError: a number of steps is below 1.
    """

    window_steps: int
    refresh_steps: int
    warmup_steps: int
    rebaseline_after_steps: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name.endswith("_steps") and getattr(self, field.name) < 1:
                raise ConfigError(
                    f"{self.name}.{field.name} is {getattr(self, field.name)}; it must be at "
                    "least 1 step"
                )

    @property
    @abstractmethod
    def kept_steps(self) -> int:
        """Healthy values kept at a refresh."""

    @abstractmethod
    def judge(self, column: W) -> None:
        """Renew baseline and limits from the window, which ends with `fresh`."""

    @abstractmethod
    def unusual(self, column: W, step: int, value: float) -> Alarm | None:
        """Take in a value that is not ordinary, or comes while an excursion lasts."""

    @abstractmethod
    def foresee(self, column: W, values: Array, num_refreshes: int) -> Figures:
        """The figures after each of the next refreshes, if all `values` are taken in.

        Bit for bit what `judge` would make of them; `baseline`, `onset_limit` and `limit`
        among them.
        """

    @abstractmethod
    def settled(self, column: W) -> bool:
        """Whether every window that `foresee` needs is full."""

    def follow(self, column: W, values: Array, figures: Figures) -> None:
        """Remember what else the rule needs of values up to a refresh that are taken in at
        once; the column is still as before them."""

    def see(self, column: W, step: int, value: float) -> Alarm | None:
        if -HUGE <= value <= column.gate:
            column.fresh.append(value)
            if len(column.fresh) == column.planned:
                self._refresh(column)
            return None
        return self.unusual(column, step, value)

    def see_row(self, state: list[W], step: int, row: list[float]) -> list[Alarm]:
        # `see` without a call for each, and without `strict`: both cost more than the rest.
        alarms: list[Alarm] = []
        for column, value in zip(state, row):  # noqa: B905
            if -HUGE <= value <= column.gate:
                column.fresh.append(value)
                if len(column.fresh) == column.planned:
                    self._refresh(column)
            elif (alarm := self.unusual(column, step, value)) is not None:
                alarms.append(alarm)
        return alarms

    def skim(self, column: W, steps: Steps, values: Array) -> int:
        every, done = self.refresh_steps, column.num_accepted
        first = column.planned - len(column.fresh)
        young = done < max(every * _SHARE, self.warmup_steps)
        if young or column.gate == _CLOSED or not self.settled(column):
            return 0
        within = np.abs(values) <= HUGE
        count = len(values) if within.all() else int(within.argmin())
        values = values[:count]
        num_refreshes = (count - first) // every + 1 if count >= first else 0
        nothing: Figures = {}
        figures = self.foresee(column, values, num_refreshes) if num_refreshes else nothing
        lengths = np.full(num_refreshes + 1, every)
        lengths[0] = min(first, count)
        lengths[-1] = count - int(lengths[:-1].sum())

        def in_force(name: str) -> Array:
            now = np.array([getattr(column, name)])
            return np.repeat(np.concatenate([now, figures.get(name, now[:0])]), lengths)

        beyond = values > in_force("limit")
        if beyond.any():
            count = int(beyond.argmax())
        if not count:
            return 0
        calm = np.flatnonzero(values[:count] <= in_force("onset_limit")[:count])
        began = int(calm[-1]) + 1 if len(calm) else 0
        column.excursion_start = int(steps[began]) if began < count else None
        self._leap(column, values[:count], figures)
        self.set_gate(column)
        return count

    def threshold(self, column: W) -> Threshold:
        missing = self.warmup_steps - column.num_accepted - len(column.fresh)
        if missing > 0:
            return Threshold(math.nan, math.nan, missing)
        return Threshold(column.baseline, self.alarm_limit(column), 0)

    def alarm_limit(self, column: W) -> float:
        """The limit as it is told: infinity where there is none."""
        return column.limit if column.limit < HUGE else math.inf

    def alarm(self, column: W, kind: AlarmKind, step: int, value: float) -> Alarm:
        """An alarm on `value`, with the limits that it was judged by."""
        onset = step if column.excursion_start is None else column.excursion_start
        return Alarm(
            kind=kind,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=max(onset, step - ONSET_REACH_STEPS),
            value=value,
            baseline=column.baseline,
            threshold=column.limit,
        )

    def accept(self, column: W, value: float) -> None:
        """Take a finite value into the baseline."""
        column.fresh.append(max(-HUGE, min(HUGE, value)))
        if len(column.fresh) == column.planned:
            self._refresh(column)

    def start_over(self, column: W, values: Sequence[float]) -> None:
        """Let these values be all that is known of the level, and no excursion last."""
        column.num_accepted += len(column.fresh) + len(values)
        column.fresh.clear()
        column.flagged.clear()
        column.excursion_start = None
        column.window.hold(np.clip(values[-self.kept_steps :], -HUGE, HUGE))
        self.judge(column)
        self._plan(column)

    def set_gate(self, column: W) -> None:
        """Let ordinary values pass, or none while an excursion lasts."""
        if column.excursion_start is not None:  # which a flagged value is part of
            column.gate = _CLOSED
        else:
            column.gate = column.onset_limit if column.onset_limit < HUGE else HUGE

    def _refresh(self, column: W) -> None:
        column.num_accepted += column.planned
        column.window.extend(column.fresh)
        del column.window[: -self.kept_steps]
        self.judge(column)
        column.fresh.clear()
        self._plan(column)

    def _plan(self, column: W) -> None:
        done, gap = column.num_accepted, self.refresh_steps
        if done < gap * _SHARE:
            gap = done // _SHARE or 1
        due = gap - (done + column.phase) % gap
        if done < self.warmup_steps:
            column.onset_limit = column.limit = NO_LIMIT
            due = min(due, self.warmup_steps - done)
        column.planned = due
        self.set_gate(column)

    def _leap(self, column: W, values: Array, figures: Figures) -> None:
        """Take in values that are all healthy, with the figures of their refreshes."""
        every, first = self.refresh_steps, column.planned - len(column.fresh)
        if len(values) < first:
            column.fresh.extend(values.tolist())
            return
        num_refreshes = (len(values) - first) // every + 1
        to_last = first + (num_refreshes - 1) * every
        self.follow(column, values[:to_last], figures)
        kept = self.kept_steps
        column.window.hold(known_and(column, values[max(0, to_last - kept) : to_last])[-kept:])
        column.fresh[:] = values[to_last:].tolist()
        column.num_accepted += column.planned + (num_refreshes - 1) * every
        column.planned = every
        for name, renewed in figures.items():
            setattr(column, name, float(renewed[num_refreshes - 1]))


@dataclass(frozen=True, kw_only=True)
class BaselineDetector(WindowDetector[W], Generic[W]):
    """Alarm on a value beyond a limit that follows the last healthy values.

    A concrete rule says where the limit lies, and where the softer *onset limit*
    lies at which an excursion begins; everything that must never be forgotten (NaN,
    warm-up, flagged values, a new level that persists) is handled here, once.
    """

    kind = AlarmKind.SPIKE

    def check_order(self, onset: str, alarm: str) -> None:
        """Refuse an onset limit that is not between zero and the alarm limit.

        Raises:
            ConfigError: it is not, or one of them is NaN.
        """
        low, high = getattr(self, onset), getattr(self, alarm)
        if not 0 < low <= high:
            raise ConfigError(
                f"{self.name}.{onset} is {low} and {alarm} is {high}; needed is "
                f"0 < {onset} <= {alarm}"
            )

    def unusual(self, column: W, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            # The nonfinite rule speaks for it; here it only must not touch the baseline.
            if column.excursion_start is None:
                column.excursion_start = step
                self.set_gate(column)
            return None
        if value <= column.onset_limit:
            column.excursion_start = None
        elif column.excursion_start is None:
            column.excursion_start = step
        if value <= column.limit:
            column.flagged.clear()
            self.set_gate(column)
            self.accept(column, value)
            return None
        column.flagged.append(value)
        if len(column.flagged) < self.rebaseline_after_steps:
            self.set_gate(column)
            return self.alarm(column, self.kind, step, value)
        alarm = self.alarm(column, AlarmKind.SHIFT, step, value)
        self.start_over(column, column.flagged.copy())
        return alarm


def phase_of(series: str) -> int:
    """Where in the schedule of refreshes a series stands: a number from its name.

    >>> phase_of("loss/global") == phase_of("loss/global"), phase_of("loss/a") % 8
    (True, 6)
    """
    return zlib.crc32(series.encode())


def within_reach(limit: float) -> float:
    """The limit, or `NO_LIMIT` if no finite measurement gets that far."""
    return limit if limit < HUGE else NO_LIMIT


def all_within_reach(limits: Array) -> Array:
    """`within_reach` of each."""
    return np.where(limits < HUGE, limits, NO_LIMIT)


def known_and(column: WindowColumn, values: Array) -> Array:
    """The healthy values that a column holds, and then these."""
    return np.concatenate([column.window, column.fresh, values])


def multiple(ratio: float, median: float) -> float:
    """`ratio * median` as a limit; there is none for a median that is not positive."""
    return within_reach(ratio * median) if median > 0 else NO_LIMIT


def multiples(ratio: float, medians: Array) -> Array:
    """`multiple` of each."""
    return np.where(medians > 0, all_within_reach(ratio * medians), NO_LIMIT)


def medians_ahead(rule: WindowDetector[W], column: W, values: Array, num_refreshes: int) -> Array:
    """The median of the window at each of the next refreshes; see `foresee`."""
    first = len(column.window) + column.planned
    return row_medians(
        windows_at(
            known_and(column, values), rule.window_steps, first, rule.refresh_steps, num_refreshes
        )
    )
