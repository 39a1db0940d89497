"""Parameters counted together: a module group's norm from those of its parameters."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from foreshock.core.names import series_name

Values = npt.NDArray[np.float64]


class Groups:
    """The module groups of a model's parameters, in order of appearance.

    Args:
        groups: the group of each parameter, `[P]`.
        sizes: elements of each parameter, `[P]`; a complex one has two.

    >>> groups = Groups(["embed", "block", "block"], [6, 3, 4])
    >>> groups.names, groups.norms(np.array([2.0, 3.0, 4.0])), groups.sizes
    (('embed', 'block'), array([2., 5.]), array([6., 7.]))
    """

    def __init__(self, groups: Sequence[str], sizes: Sequence[int]) -> None:
        self.names = tuple(dict.fromkeys(groups))
        place = {name: at for at, name in enumerate(self.names)}
        self._places = np.array([place[group] for group in groups], dtype=np.intp)
        self.sizes = self.sums(np.asarray(sizes, dtype=np.float64))
        """Elements of each group, `[G]`."""

    def each(self, signal: str) -> list[str]:
        """Series of a signal, one a group, `[G]`."""
        return [series_name(signal, name) for name in self.names]

    def whole_and_each(self, signal: str) -> list[str]:
        """Series of a signal for the whole model, then one a group, `[1 + G]`."""
        return [series_name(signal), *self.each(signal)]

    def sums(self, values: Values) -> Values:
        """Sum a quantity of parameters `[P]` over each group, `[G]`; NaN and Inf stay visible."""
        found = np.bincount(self._places, weights=values, minlength=len(self.names))
        return found.astype(np.float64, copy=False)

    def norms(self, norms: Values) -> Values:
        """L2 norm of each group `[G]` from those of its parameters `[P]`."""
        return np.sqrt(self.sums(norms**2))

    def largest(self, values: Values) -> Values:
        """Largest value over each group, `[G]`; NaN where one is. Values are at least 0."""
        found = np.zeros(len(self.names))
        np.maximum.at(found, self._places, values)
        return found


def total_norm(norms: Values) -> float:
    """L2 norm of all from the norms of the parts."""
    return float(np.sqrt(np.sum(norms**2)))
