"""Windows over many traces at once, `[T, B]`; a window ends at the step or just before it."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from benchmarks.peers.peer import Trace


def sums_before(values: Trace, window: int) -> tuple[Trace, NDArray[np.int64]]:
    """The sum of the `window` values before each step, and how many there were.

    NaN where the window holds a non-finite value.
    """
    finite = np.isfinite(values)
    total = _sums(np.where(finite, values, 0.0), window)
    if not finite.all():
        total[_sums((~finite).astype(np.float64), window) > 0.5] = np.nan
    return total, np.minimum(np.arange(len(values)), window)


def _sums(values: Trace, window: int) -> Trace:
    running = np.zeros((len(values) + 1, *values.shape[1:]))
    np.cumsum(values, axis=0, out=running[1:])
    end = np.arange(len(values))
    return running[end] - running[np.maximum(end - window, 0)]


def mean_std_before(
    values: Trace, window: int, *, ddof: int
) -> tuple[Trace, Trace, NDArray[np.int64]]:
    """Mean and deviation of the `window` values before each step, and how many there were.

    NaN where the window holds a non-finite value.
    """
    centre = np.where(np.isfinite(values[:1]), values[:1], 0.0)
    moved = values - centre  # about the first value, so that a constant trace gives exact zeros
    first, count = sums_before(moved, window)
    second, _ = sums_before(moved**2, window)
    seen = count[:, None].astype(np.float64)
    with np.errstate(all="ignore"):
        mean = first / seen
        variance = np.maximum(second - seen * mean**2, 0.0) / (seen - ddof)
        known = seen > ddof
        return (
            np.where(known, mean + centre, np.nan),
            np.where(known, np.sqrt(variance), np.nan),
            count,
        )


def median_mad(values: NDArray[np.float64], window: int) -> tuple[Trace, Trace]:
    """Median, and median absolute deviation from it, of the last `window` values `[T]`.

    The window ends with the value of the step; at the start it is as long as it can be.
    """
    median, mad = np.empty(len(values)), np.empty(len(values))
    for step in range(min(window - 1, len(values))):
        median[step] = np.median(values[: step + 1])
        mad[step] = np.median(np.abs(values[: step + 1] - median[step]))
    if len(values) >= window:
        windows = sliding_window_view(values, window)
        middle = np.median(windows, axis=-1)
        median[window - 1 :] = middle
        mad[window - 1 :] = np.median(np.abs(windows - middle[:, None]), axis=-1)
    return median, mad


def median_mad_of_each(runs: list[Trace], window: int) -> list[tuple[Trace, Trace]]:
    """`median_mad` of each run, worked out only once for what runs have in common at first."""
    known: dict[bytes, tuple[Trace, Trace, Trace]] = {}
    found: list[tuple[Trace, Trace]] = []
    for run in runs:
        key = run[:window].tobytes()
        if key not in known:
            known[key] = run, *median_mad(run, window)
        like, median, mad = known[key]
        length = min(len(run), len(like))
        differs = run[:length].view(np.int64) != like[:length].view(np.int64)
        same = int(np.argmax(differs)) if differs.any() else length
        if same < len(run):
            start = max(same - window + 1, 0)
            rest = median_mad(run[start:], window)
            median = np.concatenate([median[:same], rest[0][same - start :]])
            mad = np.concatenate([mad[:same], rest[1][same - start :]])
        found.append((median[: len(run)], mad[: len(run)]))
    return found
