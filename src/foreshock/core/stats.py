"""Order statistics of windows: one value at a time, and whole logs at once.

The one place for arithmetic that several detectors share. Median and median absolute
deviation (MAD) do not depend on the order of a window, so that a list that is sorted and a
matrix of windows that is sorted row by row give the same bits.
"""

import math
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

if TYPE_CHECKING:
    _Doubles = array[float]
else:
    _Doubles = array  # takes no parameter before Python 3.12

MAD_TO_SD = 1.4826
"""Scales the median absolute deviation to the standard deviation of a Gaussian."""

LARGEST_UNIT = 0.01
_PRINTED_UNITS = tuple((10.0**-places, 10.0**places) for places in range(2, 9))
_LARGEST_PRINTED = 1e6
_OFF_GRID = 1e-6
"""Share of a unit by which a printed value may miss its grid once it is a float64."""

_CHUNK_VALUES = 1 << 17
"""Values sorted at a time: 1 MiB, which stays in the cache."""


class Recent(_Doubles):
    """A row of float64, 8 bytes a value, that a state tree takes as it stands.

    Args:
        values: to begin with.

    >>> recent = Recent([1.0, 2.0])
    >>> recent.extend([9.0])
    >>> recent.to_tree(), recent.median()
    ([1.0, 2.0, 9.0], 2.0)
    """

    __slots__ = ()

    def __new__(cls, values: Iterable[float] = ()) -> "Recent":
        return super().__new__(cls, "d", values)  # pyright: ignore[reportReturnType]

    def hold(self, values: NDArray[np.float64]) -> None:
        """Let these be the values, and no others."""
        self[:] = array("d", values.tobytes())

    def median(self) -> float:
        """The median, as `sorted_median` gives it; NaN if there are no values."""
        if not self:
            return math.nan
        ordered = np.array(self)
        ordered.sort()
        middle = len(ordered) // 2
        return sorted_median(ordered[middle - 1 : middle + 1 + len(ordered) % 2].tolist())

    def to_tree(self) -> list[float]:
        """The values, oldest first."""
        return self.tolist()

    @classmethod
    def from_tree(cls, tree: Iterable[float]) -> "Recent":
        """Rebuild what `to_tree` wrote."""
        return cls(map(float, tree))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Recent":
        return type(self)(self)


def sorted_median(ordered: Sequence[float]) -> float:
    """The median of a sorted sequence; of an even number, the mean of the middle two.

    NaN of an empty one. A zero has no sign, so that equal windows have equal bits.

    >>> sorted_median([1.0, 2.0, 4.0, 9.0])
    3.0
    """
    count = len(ordered)
    if not count:
        return math.nan
    return _midpoint(ordered[(count - 1) // 2], ordered[count // 2]) + 0.0


def sorted_mad(ordered: Sequence[float], centre: float) -> float:
    """The median absolute deviation of a sorted sequence from its median `centre`.

    NaN of an empty one. The nearest half stands together, and its first is found by
    bisection: it is where the deviation of the last becomes the larger of the two.

    >>> sorted_mad([1.0, 2.0, 4.0, 9.0], 3.0)
    1.5
    """
    count = len(ordered)
    if not count:
        return math.nan
    rank = (count - 1) // 2
    low, high = 0, count - rank - 1
    while low < high:
        middle = (low + high) // 2
        if ordered[middle + rank] - centre < centre - ordered[middle]:
            low = middle + 1
        else:
            high = middle
    deviation = max(ordered[low + rank] - centre, centre - ordered[low])
    if low and centre - ordered[low - 1] < deviation:
        low -= 1
        deviation = centre - ordered[low]
    if count % 2:
        return deviation + 0.0
    following = centre - ordered[low - 1] if low else math.inf
    if low + rank + 1 < count:
        following = min(following, ordered[low + rank + 1] - centre)
    return _midpoint(deviation, following) + 0.0


def usual_of(values: NDArray[np.float64]) -> tuple[float, float]:
    """What is usual of `[T]` finite values: their median and robust standard deviation.

    The latter is at least 1 % of the median, so that a series which hardly moves is not out of
    its range by its last digits.

    >>> usual_of(np.array([1.0, 2.0, 9.0])), usual_of(np.array([4.0, 4.0]))
    ((2.0, 1.4826), (4.0, 0.04))
    """
    with np.errstate(all="ignore"):
        median = float(np.median(values))
        spread = MAD_TO_SD * float(np.median(np.abs(values - median)))
    return median, max(spread, 0.01 * abs(median), 1e-12)


def printed_unit(window: Sequence[float]) -> float:
    """The unit in which a log was printed, if so coarsely that it matters; else 0.

    If more than half of the values are distinct, it does not: then their MAD is at least
    half a unit. Else the largest of 0.01 (`LARGEST_UNIT`), 0.001, … 1e-8 of which all are
    multiples. Larger units are not looked for, as nobody prints fewer decimals. 0 too for
    nothing but zeros, and from a million on, where float64 itself is the grid.

    >>> printed_unit([0.31, 0.31, 0.33, 0.31, 0.32, 0.31]), printed_unit([1.0, 2.0])
    (0.01, 0.0)
    """
    distinct = set(window)
    if 2 * len(distinct) > len(window) or not 0 < max(map(abs, distinct)) < _LARGEST_PRINTED:
        return 0.0
    for unit, scale in _PRINTED_UNITS:
        if all(abs(value * scale - round(value * scale)) <= _OFF_GRID for value in distinct):
            return unit
    return 0.0


def windows_at(
    series: NDArray[np.float64], width: int, first: int, every: int, count: int
) -> NDArray[np.float64]:
    """The windows that end before `first`, `first + every`, …: a view `[count, width]`.

    Args:
        series: `[N]`.
        width: values of a window.
        first: index after the last value of the first window, at least `width`.
        every: values between two windows.
        count: windows wanted.

    >>> windows_at(np.arange(6.0), 2, 3, 2, 2).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    return sliding_window_view(series, width)[first - width :: every][:count]


def row_medians(windows: NDArray[np.float64]) -> NDArray[np.float64]:
    """`sorted_median` of each row of `[R, W]`; magnitudes up to 1e307.

    >>> row_medians(np.array([[9.0, 1.0, 4.0, 2.0]])).tolist()
    [3.0]
    """
    num_rows, width = windows.shape
    medians = np.empty(num_rows)
    chunk = max(1, _CHUNK_VALUES // width)
    for low in range(0, num_rows, chunk):
        ordered = np.sort(windows[low : low + chunk], axis=1)
        medians[low : low + chunk] = _row_middle(ordered)
    return medians


def row_spreads(
    windows: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median and MAD of each row of `[R, W]`, as `sorted_median` and `sorted_mad` give them."""
    num_rows, width = windows.shape
    medians, mads = np.empty(num_rows), np.empty(num_rows)
    chunk = max(1, _CHUNK_VALUES // width)
    for low in range(0, num_rows, chunk):
        ordered = np.sort(windows[low : low + chunk], axis=1)
        centres = _row_middle(ordered)
        np.abs(np.subtract(ordered, centres[:, None], out=ordered), out=ordered)
        ordered.sort(axis=1)
        medians[low : low + chunk], mads[low : low + chunk] = centres, _row_middle(ordered)
    return medians, mads


def row_units(windows: NDArray[np.float64]) -> NDArray[np.float64]:
    """`printed_unit` of each row of `[R, W]`."""
    num_rows, width = windows.shape
    units = np.zeros(num_rows)
    chunk = max(1, _CHUNK_VALUES // width)
    for low in range(0, num_rows, chunk):
        ordered = np.sort(windows[low : low + chunk], axis=1)
        num_distinct = 1 + np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1)
        largest = np.maximum(np.abs(ordered[:, 0]), np.abs(ordered[:, -1]))
        coarse = (2 * num_distinct <= width) & (largest > 0) & (largest < _LARGEST_PRINTED)
        rows, left = np.flatnonzero(coarse), ordered[coarse]
        for unit, scale in _PRINTED_UNITS:
            on_grid = (np.abs(left * scale - np.rint(left * scale)) <= _OFF_GRID).all(axis=1)
            units[low + rows[on_grid]] = unit
            rows, left = rows[~on_grid], left[~on_grid]
    return units


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
        return sorted_median(self._sorted)

    def mad(self) -> float:
        """The median absolute deviation from the median; NaN of an empty window."""
        return sorted_mad(self._sorted, self.median())

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


def _row_middle(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    width = ordered.shape[1]
    return (ordered[:, (width - 1) // 2] + ordered[:, width // 2]) / 2 + 0.0
