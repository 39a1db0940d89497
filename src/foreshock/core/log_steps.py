"""Which step each row of a log belongs to, and where steps go back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foreshock.core.log import Floats, Ints

_CROWD = 64
"""Rows of one step, in the median: beyond that the column counts something else."""
_MAX_LATE_ROWS = 4
_MAX_STEP = 1 << 60


class _Column(Protocol):
    @property
    def signal(self) -> str: ...
    @property
    def rows(self) -> Ints: ...
    @property
    def values(self) -> Floats: ...


@dataclass(frozen=True)
class Leader:
    """The rows that tell where the run stands.

    Attributes:
        rows: `[L]` those rows.
        steps: `[R]` the step of every row.
        explicit: whether the log names steps; if not, rows are numbered.
    """

    rows: Ints
    steps: Ints
    explicit: bool

    @cached_property
    def given(self) -> Ints:
        """`[L]` the steps of those rows."""
        return self.steps[self.rows]

    def at(self, rows: Ints) -> Ints:
        """Where the run stood when other rows were printed."""
        places = np.searchsorted(self.rows, rows, side="right") - 1
        return self.given[np.maximum(places, 0)]


def leader_of(
    steps: Ints,
    columns: Sequence[_Column],
    note: Callable[[str], None],
    *,
    announced: bool = False,
) -> Leader:
    """The rows of the loss (or else of the column that names a step most often), and from
    them every row's step: its own, or that of the row before it; its number where none is.

    `announced`: the reader told several runs apart, so steps that begin anew are no epochs.
    """
    by_signal = {column.signal: column for column in columns}
    rows = _leading_rows(steps, columns, by_signal)
    if len(rows):
        _, sizes = np.unique(steps[rows], return_counts=True)
        if len(rows) > 1 and np.median(sizes) > _CROWD:
            note("the step column stands still for many rows: rows are numbered instead")
            rows = rows[:0]
    if len(rows) == 0:
        return _numbered(len(steps), columns, by_signal)
    known = steps >= 0
    if known.all():
        filled = steps
    else:
        last = np.where(known, np.arange(len(steps), dtype=np.int64), int(np.argmax(known)))
        filled = steps[np.maximum.accumulate(last)]
    if announced:
        return Leader(rows, filled, explicit=True)
    epochs = by_signal.get("epoch")
    losses = by_signal.get("loss")
    return Leader(rows, _across_epochs(filled, rows, epochs, losses, note), explicit=True)


def interval_of(given: Ints) -> int:
    """The usual distance between two logged steps."""
    gaps = np.diff(given)
    gaps = gaps[gaps > 0]
    return int(np.median(gaps)) if len(gaps) else 1


def fallen_rows(given: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Places at which steps go back, and whether that was only printed late.

    Late is an excursion of a few rows after which the steps go on as if nothing had been;
    and all short ones where they are frequent, as where several processes print.
    """
    falls = np.flatnonzero(np.diff(given) < 0) + 1
    late = np.zeros(len(falls), np.bool_)
    if len(falls) == 0:
        return falls, late
    interval = interval_of(given)
    before = given[falls - 1]
    open_ = np.ones(len(falls), np.bool_)
    for num_rows in range(1, _MAX_LATE_ROWS + 1):
        after = np.minimum(falls + num_rows, len(given) - 1)
        over = open_ & (falls + num_rows < len(given)) & (given[after] > before)
        late |= over & (given[after] - given[after - 1] > 1.5 * interval)
        open_ &= ~over
    short = before - given[falls] <= 2 * interval
    if int(short.sum()) > max(10, len(given) // 100):
        late |= short
    return falls, late


def _leading_rows(steps: Ints, columns: Sequence[_Column], by_signal: dict[str, _Column]) -> Ints:
    explicit = steps >= 0
    for signal in ("loss", "grad_norm"):
        if signal in by_signal:
            rows = by_signal[signal].rows
            rows = rows[explicit[rows]]
            if len(rows):
                return rows
    counted = [column.rows[explicit[column.rows]] for column in columns]
    best = max(counted, key=len, default=steps[:0])
    return best if len(best) else np.flatnonzero(explicit)


def _numbered(num_rows: int, columns: Sequence[_Column], by_signal: dict[str, _Column]) -> Leader:
    """Rows numbered by those that carry the loss (or the longest column), from 1."""
    longest = max(columns, key=lambda column: len(column.rows), default=None)
    leading = by_signal.get("loss") or longest
    numbers = np.zeros(num_rows, np.int64)
    rows = np.arange(num_rows) if leading is None else leading.rows
    numbers[rows] = 1
    return Leader(rows, np.maximum(np.cumsum(numbers), 1), explicit=False)


def _across_epochs(
    steps: Ints,
    leading: Ints,
    epochs: _Column | None,
    losses: _Column | None,
    note: Callable[[str], None],
) -> Ints:
    """Steps that begin anew in every epoch, counted through."""
    given = steps[leading]
    falls = np.flatnonzero(np.diff(given) < 0) + 1
    if len(falls) == 0 or len(falls) > len(given) // 2:
        return steps
    lengths = given[falls - 1]
    if int(given[falls].max()) > int(lengths.min()) // 2:
        return steps  # it goes back, not to the beginning
    before, after = leading[falls - 1], leading[falls]
    told = None if epochs is None else _new_epochs(epochs, before, after)
    if told is None:
        even = int(lengths.max() - lengths.min()) <= 0.02 * int(lengths.max())
        told = len(falls) >= 3 and even and not _begins_anew(losses, leading[0], before, after)
    jumps = lengths + np.maximum(interval_of(given) - given[falls], 0)
    if not told or float(jumps.astype(np.float64).sum()) > _MAX_STEP:
        return steps
    note("steps begin anew in every epoch: they were counted through")
    offsets = np.zeros(len(steps), np.int64)
    offsets[after] = jumps
    return steps + np.cumsum(offsets)


def _new_epochs(epochs: _Column, before: Ints, after: Ints) -> bool | None:
    """Whether the next epoch begins between each two rows; None if the log does not say."""
    old = np.searchsorted(epochs.rows, before, side="right") - 1
    new = np.searchsorted(epochs.rows, after, side="right") - 1
    if int(old.min()) < 0:
        return None
    values = np.floor(epochs.values)
    with np.errstate(invalid="ignore"):
        rise = values[new] - values[old]
        return bool(np.all((rise > 0) & (rise <= 1)))


def _begins_anew(losses: _Column | None, first: int, before: Ints, after: Ints) -> bool:
    """Whether the loss mostly is back where it was at first: then they are runs, not epochs."""
    if losses is None:
        return False
    values = losses.values
    places = [np.searchsorted(losses.rows, rows) for rows in (first, before, after)]
    if max(int(np.max(place)) for place in places) >= len(values):
        return False
    start, end, again = (values[place] for place in places)
    with np.errstate(invalid="ignore"):
        return bool(np.mean(np.abs(again - start) < np.abs(again - end)) > 0.5)
