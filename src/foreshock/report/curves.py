"""Readings of all attempts as curves: what counts, what was undone, what was not finite."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ForeshockError
from foreshock.core.kept_steps import attempt_starts, kept_to
from foreshock.core.names import GLOBAL, split_series
from foreshock.core.reading import is_absent
from foreshock.core.records import ReadingBlock
from foreshock.journal import RunView

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_POINTS: Final = 4000
"""Points of a drawn curve. Our choice: twice the pixels of a wide screen."""

MAX_VALUES: Final = 30_000_000
"""Values of an attempt that are read in full. Our choice: 120 MB."""

MAX_MARKS: Final = 400
"""Marks of non-finite values on one curve; more would be one solid bar."""

STANDARD: Final = (
    "loss/global",
    "grad_norm/global",
    "update_ratio/global",
    "activation_norm",
    "lr/global",
)
"""What is drawn, in this order; a name without a scope means its last scope."""


class Mark(NamedTuple):
    """A reading that is not a number on the axis: NaN or ±Inf."""

    step: int
    value: float
    undone: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One series, ready to draw: finite values, NaN where the line breaks.

    Attributes:
        steps: of the final lineage, rising.
        undone: of each undone branch its steps and values, from the step it left off.
        marks: what was not finite.
        longest: rows of the lineage before thinning.
    """

    series: str
    steps: Ints
    values: Floats
    undone: tuple[tuple[Ints, Floats], ...] = ()
    marks: tuple[Mark, ...] = ()
    longest: int = 0

    @property
    def finite(self) -> Floats:
        """Every finite value on it, undone ones included."""
        every = np.concatenate([self.values, *(values for _, values in self.undone)])
        return every[np.isfinite(every)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One attempt's readings; those after `kept_to` were undone by a later attempt."""

    attempt: int
    start: int
    kept_to: int | None
    block: ReadingBlock = field(repr=False)

    @property
    def num_rows(self) -> int:
        """Steps that were read."""
        return len(self.block.steps)

    @property
    def num_undone(self) -> int:
        """Steps that were undone later."""
        return 0 if self.kept_to is None else int((self.block.steps > self.kept_to).sum())

    @property
    def last_step(self) -> int:
        """The last step that was read."""
        return int(self.block.steps[-1])

    def column(self, series: str) -> tuple[Ints, Floats] | None:
        """`[T]` steps and values where a series was measured; None if it never was here."""
        if series not in self.block.series:
            return None
        values = self.block.values[:, self.block.series.index(series)]
        there = ~is_absent(values)
        return self.block.steps[there], values[there].astype(np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Lineage:
    """A run's readings over all attempts."""

    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Every series that any attempt measured."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.block.series))

    @property
    def num_rows(self) -> int:
        """Steps read in all attempts together."""
        return sum(part.num_rows for part in self.parts)

    @property
    def num_undone(self) -> int:
        """Steps read and later undone."""
        return sum(part.num_undone for part in self.parts)

    def curve(
        self,
        series: str,
        max_points: int = MAX_POINTS,
        *,
        first: int | None = None,
        last: int | None = None,
    ) -> Curve | None:
        """A series from a first to a last step, thinned; None if nobody measured it there."""
        steps: list[Ints] = []
        values: list[Floats] = []
        undone: list[tuple[Ints, Floats]] = []
        marks: list[Mark] = []
        for part in self.parts:
            column = part.column(series)
            if column is None:
                continue
            at, values_at = column
            near = np.ones(len(at), bool)
            near &= True if first is None else at >= first
            near &= True if last is None else at <= last
            at, values_at = at[near], values_at[near]
            gone = np.zeros(len(at), bool) if part.kept_to is None else at > part.kept_to
            steps.append(at[~gone])
            values.append(values_at[~gone])
            if gone.any():
                joint = max(int(gone.argmax()) - 1, 0)
                undone.append(thin(at[joint:], values_at[joint:], max_points // 4))
                marks += nonfinite_marks(at[gone], values_at[gone], undone=True)
        if not any(len(one) for one in steps) and not undone:
            return None
        at, column = np.concatenate(steps), np.concatenate(values)
        thinned, kept = thin(at, column, max_points)
        marks += nonfinite_marks(at, column, undone=False)
        return Curve(
            series=series,
            steps=thinned,
            values=kept,
            undone=tuple(undone),
            marks=tuple(sorted(marks, key=lambda mark: mark.step)),
            longest=len(at),
        )


def read_lineage(view: RunView) -> Lineage:
    """Read every attempt's readings and find what each later attempt undid.

    An attempt that begins at step 100 undoes what earlier ones measured after step 100.
    A readings file that cannot be read is left out, and `notes` says so.
    """
    starts = attempt_starts(view.records)
    blocks: dict[int, ReadingBlock] = {}
    notes: list[str] = []
    for attempt in view.attempts():
        try:
            blocks[attempt], told = _read(view, attempt)
            notes += told
        except FileNotFoundError:
            continue
        except (ForeshockError, OSError) as error:
            notes.append(f"the readings of attempt {attempt} cannot be read: {error}")
            continue
        torn = blocks[attempt].torn_bytes
        if torn:
            notes.append(f"the readings of attempt {attempt} end in {torn:,} bytes of no whole row")
    for attempt, block in blocks.items():
        if attempt not in starts and len(block.steps):
            starts[attempt] = int(block.steps[0]) - 1
    ends = kept_to(starts)
    parts = [
        Part(attempt=attempt, start=starts.get(attempt, 0), kept_to=ends.get(attempt), block=block)
        for attempt, block in sorted(blocks.items())
    ]
    return Lineage(parts=tuple(parts), notes=tuple(notes))


def _read(view: RunView, attempt: int) -> tuple[ReadingBlock, list[str]]:
    """An attempt's readings; of a very long one those of the whole run and what alarmed."""
    with view.reader(attempt) as reader:
        num_rows, num_series = reader.size()
        if num_rows * num_series <= MAX_VALUES:
            return reader.read(), []
        alarms = [record.get("alarm") for record in view.records]
        alarmed = [one.get("series") for one in alarms if isinstance(one, dict)]
        wanted = [
            name for name in reader.series() if split_series(name)[1] == GLOBAL or name in alarmed
        ]
        note = f"attempt {attempt} is long: of its {num_series:,} series {len(wanted)} were read"
        return reader.read(wanted), [note]


def thin(steps: Ints, values: Floats, max_points: int) -> tuple[Ints, Floats]:
    """At most about `max_points` points that keep every bucket's least and greatest value.

    Values that are not finite come back as NaN, one a bucket, so that the line breaks.

    >>> at, kept = thin(np.arange(1000), np.r_[np.zeros(500), 7.0, np.zeros(499)], 30)
    >>> len(at) <= 33, float(kept.max())
    (True, 7.0)
    """
    values = np.where(np.isfinite(values), values, np.nan)
    if len(values) <= max_points:
        return steps, values
    gaps = np.isnan(values)
    edges = np.linspace(0, len(values), max(1, max_points // 3) + 1).astype(np.int64)
    low = np.minimum.reduceat(np.where(gaps, np.inf, values), edges[:-1])
    high = np.maximum.reduceat(np.where(gaps, -np.inf, values), edges[:-1])
    bucket = np.repeat(np.arange(len(low)), np.diff(edges))
    keep: list[Ints] = [np.array([0, len(values) - 1])]
    for wanted in (values == low[bucket], values == high[bucket], gaps):
        where = np.flatnonzero(wanted)
        keep.append(where[np.unique(bucket[where], return_index=True)[1]])
    place = np.unique(np.concatenate(keep))
    return steps[place], values[place]


def chosen_series(lineages: Iterable[Lineage], first_movers: Sequence[str]) -> list[str]:
    """The series to draw: the standard ones, then what moved first in an incident."""
    known = list(dict.fromkeys(name for lineage in lineages for name in lineage.series))
    found: list[str] = []
    for name in STANDARD:
        if "/" in name:
            found += [name] if name in known else []
        else:
            found += [one for one in known if one.partition("/")[0] == name][-1:]
    extra = [name for name in dict.fromkeys(first_movers) if name in known and name not in found]
    return found + extra[:3]


def nonfinite_marks(steps: Ints, values: Floats, *, undone: bool) -> list[Mark]:
    where = np.flatnonzero(~np.isfinite(values))
    if len(where) > MAX_MARKS:
        where = where[np.linspace(0, len(where) - 1, MAX_MARKS).astype(np.int64)]
    return [Mark(int(steps[i]), float(values[i]), undone) for i in where]


def wants_log(values: Floats, *, always: bool = False) -> bool:
    """Whether a logarithmic axis shows these values better: positive, over a wide range."""
    positive = values[values > 0]
    if not len(positive):
        return False
    if always:
        return True
    return len(positive) == len(values) and float(values.max() / values.min()) > 30


def axis_limits(values: Floats, *, log: bool) -> tuple[float, float]:
    """The ends of an axis, with some air.

    >>> axis_limits(np.array([1.0, 3.0]), log=False)
    (0.84, 3.24)
    """
    values = values[values > 0] if log else values
    if not len(values):
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if log:
        room = max(math.log10(high / low), 0.3)
        return low / 10 ** (0.08 * room), high * 10 ** (0.14 * room)
    room = (high - low) or abs(high) or 1.0
    return low - 0.08 * room, high + 0.12 * room


def log_ticks(low: float, high: float) -> dict[float, str]:
    """A few ticks of a logarithmic axis with their labels: decades, 1-2-5, or even steps.

    >>> log_ticks(0.004, 0.03)
    {0.005: '0.005', 0.01: '0.01', 0.02: '0.02'}
    >>> list(log_ticks(0.5, 2e6).values())
    ['1', '100', '10⁴', '10⁶']
    >>> list(log_ticks(2.8, 3.3))
    [2.9, 3.05, 3.2]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = last - first
    mantissas = (1, 2, 5) if decades <= 2 else (1,)
    every = max(1, math.ceil(decades / 6))
    found: dict[float, str] = {}
    for power in range(first, last + 1):
        for mantissa in mantissas:
            value = float(f"{mantissa}e{power}")
            if low <= value <= high and power % every == 0:
                long = f"10{_raised(power)}" if mantissa == 1 else f"{mantissa}·10{_raised(power)}"
                found[value] = f"{value:g}" if -3 <= power <= 3 else long
    if len(found) < 2:
        room = 0.2 * (high - low)
        even = [float(f"{value:.3g}") for value in np.linspace(low + room, high - room, 3)]
        found = {value: f"{value:g}" for value in even}
    return found


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
