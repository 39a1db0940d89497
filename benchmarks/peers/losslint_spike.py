"""losslint `loss_spike` (0.4.1): a loss that is a multiple of the median around it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from benchmarks.peers.peer import Flags, Peer, Trace


@dataclass(frozen=True, kw_only=True)
class LosslintSpike(Peer):
    """Flag a loss above `multiple` times the median of the 24 around it.

        x[t] > multiple * median(x[t - 12], .., x[t - 1], x[t + 1], .., x[t + 12])

    Non-finite losses are left out, and at both ends the window is what there is. It looks
    ahead, so that the flag is raised twelve losses later, when it is known.

    Reference: losslint on PyPI, table of checks in the README.
    """

    name: ClassVar[str] = "losslint"
    signals: ClassVar[tuple[str, ...]] = ("loss",)
    threshold: ClassVar[str] = "multiple"
    neutral: ClassVar[float] = 1.0
    multiple: float = 10.0
    half: int = 12

    def prepare(self, signal: str, values: Trace) -> Any:
        median = np.full(values.shape, np.nan)
        known_at = np.tile(np.arange(len(values))[:, None], values.shape[1])
        for place in range(values.shape[1]):
            finite = np.flatnonzero(np.isfinite(values[:, place]))
            if not len(finite):
                continue
            median[finite, place] = median_around(values[finite, place], self.half)
            later = np.minimum(np.arange(len(finite)) + self.half, len(finite) - 1)
            known_at[finite, place] = finite[later]
        return values, median, known_at

    def decide(self, prepared: dict[str, Any]) -> Flags:
        values, median, known_at = prepared["loss"]
        flags = np.zeros(values.shape, dtype=bool)
        step, place = np.nonzero(values > self.multiple * median)
        flags[known_at[step, place], place] = True
        return flags


def median_around(series: Trace, half: int) -> Trace:
    """The median of up to `half` values before and `half` after each, without itself."""
    around = np.pad(series, half, constant_values=np.nan)
    windows = np.delete(sliding_window_view(around, 2 * half + 1), half, axis=1)
    if len(series) < 2 * half:
        return np.nanmedian(windows, axis=-1)
    middle = np.median(windows, axis=-1)
    ends = [*range(half), *range(len(series) - half, len(series))]
    middle[ends] = np.nanmedian(windows[ends], axis=-1)
    return middle
