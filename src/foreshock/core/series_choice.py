"""Which series of a step a mirror is given."""

import dataclasses
from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from foreshock.core.mirrored import MirroredStep


class SeriesChoice:
    """Leaves the series that one of the patterns names; `fnmatch` says how they are read.

    >>> step = MirroredStep(
    ...     attempt=1, step=2, time_secs=0.0, committed=True,
    ...     series=("loss/global", "grad_norm/global"), values=np.ones(2, np.float32),
    ... )
    >>> SeriesChoice(["grad_*"]).of(step).readings()
    {'grad_norm/global': 1.0}
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = None if "*" in patterns else tuple(patterns)
        self._known: tuple[tuple[str, ...], tuple[str, ...], NDArray[np.int64]] | None = None

    def of(self, step: MirroredStep) -> MirroredStep:
        """The same step, with these series only."""
        if self._patterns is None or not step.series:
            return step
        known = self._known
        if known is None or known[0] is not step.series:
            places = [
                place
                for place, name in enumerate(step.series)
                if any(fnmatchcase(name, pattern) for pattern in self._patterns)
            ]
            kept = tuple(step.series[place] for place in places)
            known = self._known = step.series, kept, np.array(places, np.int64)
        _, series, chosen = known
        limits = step.thresholds
        return dataclasses.replace(
            step,
            series=series,
            values=step.values[chosen],
            thresholds=None if limits is None else limits[chosen],
        )
