"""Streaming statistics: windows whose median costs a few microseconds a value.

The one place for arithmetic that several detectors share. States are plain
values: they can be copied, written to JSON and rebuilt exactly.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable

MAD_TO_SD = 1.4826
"""Scales the median absolute deviation to the standard deviation of a Gaussian."""


class RollingMedian:
    """The median of the last `window` values, with their median absolute deviation.

    Keeps the values twice, in order of arrival and sorted; a new value costs one
    binary search and one shift of a short list (about 1.5 µs at 1,000 values).
    The caller keeps non-finite values out: a NaN has no place in a sorted list.

    Args:
        window: number of values kept, at least 1.
        values: to begin with, finite.

    >>> recent = RollingMedian(3)
    >>> for value in (1.0, 9.0, 2.0, 4.0):
    ...     recent.add(value)
    >>> recent.median(), recent.mad()
    (4.0, 2.0)
    """

    __slots__ = ("_arrived", "_sorted", "window")

    def __init__(self, window: int, values: Iterable[float] = ()) -> None:
        if window < 1:
            raise ValueError(f"window is {window}; it must be at least 1 value")
        self.window = window
        self._arrived: deque[float] = deque(values, maxlen=window)
        for value in self._arrived:
            _refuse_nonfinite(value)
        self._sorted = sorted(self._arrived)

    def __len__(self) -> int:
        return len(self._arrived)

    @property
    def values(self) -> list[float]:
        """The values in the window, oldest first."""
        return list(self._arrived)

    def add(self, value: float) -> None:
        """Take in one finite value, and let go of the oldest if the window is full.

        Raises:
            ValueError: `value` is NaN or infinite.
        """
        _refuse_nonfinite(value)
        if len(self._arrived) == self.window:
            oldest = self._arrived[0]
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._arrived.append(value)
        insort(self._sorted, value)

    def median(self) -> float:
        """The median; NaN of an empty window. Of an even number, the mean of the middle two."""
        ordered = self._sorted
        count = len(ordered)
        if not count:
            return math.nan
        middle = count // 2
        if count % 2:
            return ordered[middle]
        return _midpoint(ordered[middle - 1], ordered[middle])

    def mad(self) -> float:
        """The median absolute deviation from the median; NaN of an empty window.

        The deviations below and above the median are two sorted runs, so that the
        middle one is found without sorting them.
        """
        ordered = self._sorted
        count = len(ordered)
        if not count:
            return math.nan
        centre = self.median()
        below = bisect_left(ordered, centre) - 1
        above = below + 1
        needed = count // 2 + 1
        previous = current = 0.0
        for _ in range(needed):
            previous = current
            left = centre - ordered[below] if below >= 0 else math.inf
            right = ordered[above] - centre if above < count else math.inf
            if left <= right:
                current = left
                below -= 1
            else:
                current = right
                above += 1
        return current if count % 2 else _midpoint(previous, current)

    def to_tree(self) -> dict[str, object]:
        """A JSON-able value from which `from_tree` rebuilds this window exactly."""
        return {"window": self.window, "values": self.values}

    @classmethod
    def from_tree(cls, tree: dict[str, object]) -> "RollingMedian":
        """Rebuild what `to_tree` wrote."""
        window, values = tree["window"], tree["values"]
        assert isinstance(window, int)
        assert isinstance(values, list)
        return cls(window, (float(value) for value in values))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def _refuse_nonfinite(value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"a rolling median takes finite values only, got {value}")


def _midpoint(low: float, high: float) -> float:
    """The mean of two values, without overflow where their sum has none."""
    return low / 2 + high / 2 if abs(low) > 1e300 or abs(high) > 1e300 else (low + high) / 2
