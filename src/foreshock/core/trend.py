"""Robust trends of a series: where it stands, how it grows, how far it is from its own line."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshock.core.stats import MAD_TO_SD

_LAST = 5


class Trend(NamedTuple):
    """A line through the last values, by the Theil-Sen estimator.

    Attributes:
        level: the line's value at the last step.
        growth: level over the line's first value; NaN where it starts at 0 or below.
        distance: median of the last five residuals, in standard deviations of all of them
            (estimated by the MAD); positive above the line.
        clear: whether the rise or fall along the line is beyond three of them.
    """

    level: float
    growth: float
    distance: float
    clear: bool

    @property
    def rising(self) -> bool:
        """Whether it clearly rises."""
        return self.clear and self.growth > 1


def trend_of(values: NDArray[np.float64]) -> Trend | None:
    """The trend of evenly spaced values `[T]`; None of fewer than ten finite ones.

    O(T²): for windows of some dozens. Non-finite values are left out. Up to 29 % of the values
    may be outliers.

    >>> trend_of(np.arange(10.0) + 10)
    Trend(level=19.0, growth=1.9, distance=0.0, clear=True)

    Reference: Theil (1950) and Sen (1968), https://doi.org/10.1080/01621459.1968.10480934.
    """
    places = np.flatnonzero(np.isfinite(values))
    if len(places) < 2 * _LAST:
        return None
    known = values[places]
    i, j = np.triu_indices(len(places), 1)
    slope = float(np.median((known[j] - known[i]) / (places[j] - places[i])))
    start = float(np.median(known - slope * places))
    residuals = known - (start + slope * places)
    spread = MAD_TO_SD * float(np.median(np.abs(residuals)))
    last = len(values) - 1
    level, first = start + slope * last, start + slope * places[0]
    tail = float(np.median(residuals[-_LAST:]))
    tiny = max(spread, 1e-12 * abs(level))
    return Trend(
        level=level,
        growth=float(level / first) if first > 0 else float("nan"),
        distance=tail / tiny if tiny else 0.0,
        clear=bool(abs(slope * (last - places[0])) > 3 * tiny),
    )
