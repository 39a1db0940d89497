"""What several slow rules compare with: a window of accepted readings, and blocks of them.

Both are worked out anew only every few readings, and in the same order of operations for
one reading at a time and for a million, so that a long log is fast and no bit differs.
"""

from dataclasses import dataclass
from operator import sub

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from foreshock.core.detector import Steps

Readings = NDArray[np.float64]

_QUARTILES_TO_SD = 1.349
_TAILS_TO_SD = 3.29
"""Distances of the quartiles, and of the 5th and 95th percentile, of a unit Gaussian."""


def centre_and_spread(ordered: list[float]) -> tuple[float, float]:
    """Return median and robust standard deviation of sorted finite values.

    The spread is the larger of two, from the quartiles and from the 5th and 95th percentile:
    equal for a Gaussian, and the second still sees something where tails are heavy or where
    a log prints so few digits that the quartiles coincide; of fewer than 20 values the
    quartiles alone. 0 where float64 ends.

    >>> centre_and_spread([1.0, 2.0, 3.0, 4.0])
    (2.5, 0.7412898443291327)
    """
    count = len(ordered)
    centre = 0.5 * ordered[(count - 1) // 2] + 0.5 * ordered[count // 2] + 0.0  # no -0.0
    quarter, tail = count // 4, count // 20
    inner = (ordered[-1 - quarter] - ordered[quarter]) / _QUARTILES_TO_SD
    outer = (ordered[-1 - tail] - ordered[tail]) / _TAILS_TO_SD if tail else 0.0
    spread = inner if inner > outer else outer
    return centre, spread if spread < 1e300 else 0.0


def rows_centre_and_spread(ordered: Readings) -> tuple[Readings, Readings]:
    """The same for each row of `[N, W]`, sorted along W: `[N]` and `[N]`, bit for bit."""
    count = ordered.shape[1]
    centre = 0.5 * ordered[:, (count - 1) // 2] + 0.5 * ordered[:, count // 2] + 0.0
    quarter, tail = count // 4, count // 20
    with np.errstate(over="ignore"):
        inner = (ordered[:, -1 - quarter] - ordered[:, quarter]) / _QUARTILES_TO_SD
        outer = (ordered[:, -1 - tail] - ordered[:, tail]) / _TAILS_TO_SD if tail else 0.0
    spread = np.where(inner > outer, inner, outer)
    return centre, np.where(spread < 1e300, spread, 0.0)


@dataclass(frozen=True, slots=True)
class Ahead:
    """How a reference would move on if every one of some readings were accepted.

    Attributes:
        centre: `[N + 1]`, the present one and after each of N refreshes.
        spread: likewise.
        roughness: likewise.
        age: `[T]` index of the one that each reading is compared with.
        joined: `[W + T]` the window and the readings.
    """

    centre: Readings
    spread: Readings
    roughness: Readings
    age: NDArray[np.int64]
    joined: Readings


class Reference:
    """Centre and spread of the last `size` accepted readings, refreshed every `every` of them.

    Args:
        size: readings remembered.
        every: readings between two refreshes, and before the first.
        rough: whether the roughness is wanted too.
        values: to begin with, oldest first, finite.

    Attributes:
        ready: whether there has been a refresh; before, the figures below mean nothing.
        centre: median of the window.
        spread: its robust standard deviation.
        roughness: spread of the differences of neighbours over that which independent
            readings of this spread would have: 1 for white noise, towards 0 for a series
            that creeps (a running mean, a trend).

    >>> recent = Reference(4, 2)
    >>> for value in (1.0, 3.0, 2.0, 9.0):
    ...     _ = recent.add(value)
    >>> recent.centre, recent.num_missing
    (2.5, 0)
    """

    __slots__ = (
        "_fresh",
        "_values",
        "centre",
        "every",
        "ready",
        "rough",
        "roughness",
        "size",
        "spread",
    )

    def __init__(
        self, size: int, every: int, *, rough: bool = False, values: list[float] | None = None
    ) -> None:
        self.size = size
        self.every = every
        self.rough = rough
        self.ready = False
        self.centre = self.spread = 0.0
        self.roughness = 1.0
        self._fresh = 0
        self._values = [] if values is None else values[-size:]
        if self._values:
            self._refresh()

    @property
    def num_missing(self) -> int:
        """Accepted readings that are still needed before the first refresh."""
        return 0 if self.ready else self.every - self._fresh

    @property
    def is_full(self) -> bool:
        """Whether the window is full, so that `look_ahead` can be asked."""
        return self.ready and len(self._values) >= self.size + self._fresh

    def add(self, value: float) -> bool:
        """Accept one finite reading; True if the figures were refreshed."""
        self._values.append(value)
        self._fresh += 1
        if self._fresh < self.every:
            return False
        self._refresh()
        return True

    def halves(self) -> tuple[float, float]:
        """The medians of the older and the newer half of the window."""
        values = self._values
        middle = len(values) // 2
        older, _ = centre_and_spread(sorted(values[:middle] or values))
        newer, _ = centre_and_spread(sorted(values[middle:]))
        return older, newer

    def look_ahead(self, values: Readings) -> Ahead:
        """Work out what the reference would be if these readings were accepted one by one."""
        joined = np.concatenate([np.array(self._values), values])
        age = (np.arange(len(values)) + self._fresh) // self.every
        if len(joined) >= self.every + self.size:
            windows = sliding_window_view(joined, self.size)[self.every :: self.every]
            centre, spread = rows_centre_and_spread(np.sort(windows, axis=1))
            roughness = np.ones(len(windows))
            if self.rough:
                with np.errstate(over="ignore"):
                    steps = np.sort(windows[:, 1::2] - windows[:, :-1:2], axis=1)
                moved = rows_centre_and_spread(steps)[1]
                ratio = moved / np.where(spread > 0, spread, 1.0)
                roughness = np.where(spread > 0, ratio * ratio / 2.0, 1.0)
        else:
            centre = spread = roughness = np.empty(0)
        return Ahead(
            centre=np.concatenate([[self.centre], centre]),
            spread=np.concatenate([[self.spread], spread]),
            roughness=np.concatenate([[self.roughness], roughness]),
            age=age,
            joined=joined,
        )

    def go(self, ahead: Ahead, count: int) -> None:
        """Accept the first `count` of the readings that `ahead` was worked out for."""
        refreshes, fresh = divmod(self._fresh + count, self.every)
        end = len(ahead.joined) - len(ahead.age) + count
        self._values = ahead.joined[:end][-(self.size + fresh) :].tolist()
        self._fresh = fresh
        self.centre = float(ahead.centre[refreshes])
        self.spread = float(ahead.spread[refreshes])
        self.roughness = float(ahead.roughness[refreshes])

    def _refresh(self) -> None:
        values = self._values
        if len(values) > self.size:
            del values[: -self.size]
        self._fresh = 0
        self.ready = True
        self.centre, self.spread = centre_and_spread(sorted(values))
        self.roughness = 1.0
        if self.rough and self.spread > 0 and len(values) > 1:
            _, moved = centre_and_spread(sorted(map(sub, values[1::2], values[:-1:2])))
            ratio = moved / self.spread
            self.roughness = ratio * ratio / 2.0

    def to_tree(self) -> dict[str, object]:
        """A JSON-able value from which `from_tree` rebuilds this reference exactly."""
        rest = {name: getattr(self, name) for name in self.__slots__ if name != "_values"}
        return {**rest, "_values": list(self._values)}

    @classmethod
    def from_tree(cls, tree: dict[str, object]) -> "Reference":
        """Rebuild what `to_tree` wrote."""
        found = cls(1, 1)
        for name in cls.__slots__:
            value = tree[name]
            setattr(found, name, list(value) if isinstance(value, list) else value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return found


def finite_only(steps: Steps, values: Readings) -> tuple[Steps, Readings, NDArray[np.int64] | None]:
    """Leave out non-finite readings; the third says where the rest stood, None if all stay."""
    finite = np.isfinite(values)
    if finite.all():
        return steps, values, None
    places = np.flatnonzero(finite)
    return steps[places], values[places], places
