"""The recent past of a run: what every series was at every step, in memory."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from foreshock.core.names import split_series
from foreshock.core.reading import ABSENT, Reading, is_absent

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Timeline:
    """A bounded table of steps and series; the oldest rows make room for new ones.

    Steps rise strictly: when time goes backwards, `rewind` cuts the rows that were
    undone. Rows keep the attempt in which they were measured. Where a series was not due, a
    float32 row has ABSENT, which no query returns.

    Args:
        series: column names, `[S]`.
        capacity: rows kept.
        dtype: of what is kept; float32 for what was measured live.

    >>> line = Timeline(["loss/global"], capacity=2)
    >>> for step in range(3):
    ...     line.append(1, step, True, [float(step)])
    >>> line.steps.tolist(), line.values("loss/global").tolist()
    ([1, 2], [1.0, 2.0])
    """

    def __init__(
        self,
        series: Sequence[str],
        capacity: int = 2048,
        *,
        dtype: "type[np.float32 | np.float64]" = np.float64,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1 row")
        self.series = tuple(series)
        self._place = {name: place for place, name in enumerate(self.series)}
        self._capacity = capacity
        self._attempts = np.zeros(2 * capacity, np.int64)
        self._steps = np.zeros(2 * capacity, np.int64)
        self._committed = np.zeros(2 * capacity, np.bool_)
        self._values = np.zeros((2 * capacity, len(self.series)), dtype)
        self._start = self._end = 0

    def __len__(self) -> int:
        return self._end - self._start

    def append(
        self,
        attempt: int,
        step: int,
        committed: bool,
        values: Sequence[float] | Floats | NDArray[np.float32],
    ) -> None:
        """Take in one step.

        Raises:
            ValueError: the step is not after the last one, or there is not one value a
                series.
        """
        if len(values) != len(self.series):
            raise ValueError(f"step {step} has {len(values)} values for {len(self.series)} series")
        if len(self) and step <= self._steps[self._end - 1]:
            raise ValueError(
                f"step {step} is not after the timeline's last step {self._steps[self._end - 1]}; "
                "rewind first"
            )
        if self._end == len(self._steps):
            self._compact()
        row = self._end
        self._attempts[row], self._steps[row] = attempt, step
        self._committed[row] = committed
        self._values[row] = values
        self._end += 1
        self._start = max(self._start, self._end - self._capacity)

    def rewind(self, step: int) -> None:
        """Forget every row after `step`."""
        kept = int(np.searchsorted(self.steps, step, side="right"))
        self._end = self._start + kept

    @property
    def attempts(self) -> Ints:
        """`[T]` attempt of each row."""
        return self._attempts[self._start : self._end]

    @property
    def steps(self) -> Ints:
        """`[T]` step of each row."""
        return self._steps[self._start : self._end]

    @property
    def committed(self) -> NDArray[np.bool_]:
        """`[T]` whether the row's update was made."""
        return self._committed[self._start : self._end]

    @property
    def table(self) -> "NDArray[np.float32 | np.float64]":
        """`[T, S]` every value, ABSENT where there is none."""
        return self._values[self._start : self._end]

    def has(self, series: str) -> bool:
        """Whether a series is measured."""
        return series in self._place

    def values(
        self,
        series: str,
        first: int | None = None,
        last: int | None = None,
        *,
        committed_only: bool = False,
    ) -> Floats:
        """`[T]` values of one series, of the steps from `first` to `last`, both included.

        Steps in which it has no value are left out: `steps_of` gives those that are not. A
        series that is not measured gives an empty array; `committed_only` leaves out the
        steps whose update was skipped.
        """
        return self._column(series, first, last, committed_only)[1]

    def steps_of(
        self,
        series: str,
        first: int | None = None,
        last: int | None = None,
        *,
        committed_only: bool = False,
    ) -> Ints:
        """`[T]` the steps of `values`, with the same arguments."""
        rows = self._column(series, first, last, committed_only)[0]
        return self.steps[rows]

    def _column(
        self, series: str, first: int | None, last: int | None, committed_only: bool
    ) -> tuple[Ints, Floats]:
        """Rows of a series that has a value there, and these values."""
        if series not in self._place:
            return np.zeros(0, np.int64), np.zeros(0)
        low, high = self._rows(first, last)
        column = self.table[low:high, self._place[series]].copy()
        kept = np.ones(len(column), np.bool_)
        if column.dtype == np.float32:
            kept = ~is_absent(cast("NDArray[np.float32]", column))
        if committed_only:
            kept &= self.committed[low:high]
        return np.flatnonzero(kept) + low, column[kept].astype(np.float64)

    def readings(
        self, series: str, first: int | None = None, last: int | None = None
    ) -> list[Reading]:
        """The same as readings, which carry their attempt and step."""
        rows, values = self._column(series, first, last, committed_only=False)
        signal, scope = split_series(series)
        attempts, steps = self.attempts[rows].tolist(), self.steps[rows].tolist()
        return [
            Reading(attempt, step, signal, scope, value)
            for attempt, step, value in zip(attempts, steps, values.tolist(), strict=True)
        ]

    def to_tree(self) -> dict[str, Any]:
        """A value from which `load_tree` restores this timeline."""
        return {
            "series": list(self.series),
            "attempts": self.attempts.copy(),
            "steps": self.steps.copy(),
            "committed": self.committed.astype(np.uint8),
            "values": self.table.copy(),
        }

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Replace the rows by the last of `to_tree`; columns are matched by name."""
        count = min(len(tree["steps"]), self._capacity)
        last = slice(len(tree["steps"]) - count, None)
        self._start, self._end = 0, count
        self._attempts[:count] = tree["attempts"][last]
        self._steps[:count] = tree["steps"][last]
        self._committed[:count] = np.asarray(tree["committed"][last]).astype(np.bool_)
        self._values[:count] = np.nan if self._values.dtype == np.float64 else ABSENT
        for place, name in enumerate(tree["series"]):
            if name in self._place:
                self._values[:count, self._place[name]] = tree["values"][last, place]

    def _rows(self, first: int | None, last: int | None) -> tuple[int, int]:
        steps = self.steps
        low = 0 if first is None else int(np.searchsorted(steps, first, side="left"))
        high = len(steps) if last is None else int(np.searchsorted(steps, last, side="right"))
        return low, max(low, high)

    def _compact(self) -> None:
        count = len(self)
        for column in (self._attempts, self._steps, self._committed, self._values):
            column[:count] = column[self._start : self._end].copy()
        self._start, self._end = 0, count
