"""How much of a sequence is one n-gram repeated back to back."""

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-9

MAX_PERIOD = 13
"""Longest n-gram looked at, in tokens: OLMo 2 masks runs of 1- to 13-grams."""


def repeated_share(
    tokens: NDArray[np.integer], *, min_repeats: int, max_period: int = MAX_PERIOD
) -> float:
    """Return the share of positions inside an n-gram that repeats back to back.

    A stretch of length L has period n where x[i] = x[i + n] throughout; it counts when it
    holds at least `min_repeats` copies, L >= n * min_repeats. The result is the size of the
    union of such stretches over n = 1 .. max_period, divided by the length. A raised
    `min_repeats` ignores harmless runs (double letters, indentation) and needs longer
    sequences: an n-gram cannot be found in fewer than n * min_repeats tokens.

    Args:
        tokens: `[T]` integers of any type.
        min_repeats: copies in a row, at least 2.
        max_period: longest n-gram, in tokens.

    Returns:
        A share in [0, 1]; 0 for an empty sequence.

    >>> repeated_share(np.array([7, 1, 2, 1, 2, 1, 2, 9]), min_repeats=3)
    0.75
    >>> repeated_share(np.array([7, 1, 2, 1, 2, 1, 2, 9]), min_repeats=4)
    0.0

    Reference: OLMo 2 (2025), section 3.1, "repeated n-grams",
    https://arxiv.org/abs/2501.00656. There any run of 32 copies counts; the share is our
    addition, so that windows of any length compare.
    """
    length = len(tokens)
    change = np.zeros(length + 1, dtype=np.int32)  # +1 where a stretch starts, -1 past its end
    same = np.zeros(length + 1, dtype=bool)  # [0] stays False, so a run at the start has an edge
    for period in range(1, min(max_period, length // min_repeats) + 1):
        stop = length - period + 1
        np.equal(tokens[period:], tokens[:-period], out=same[1:stop])
        same[stop] = False
        needed = period * (min_repeats - 1)
        if np.count_nonzero(same[:stop]) < needed:
            continue
        edges = np.flatnonzero(same[1 : stop + 1] != same[:stop])
        starts, stops = edges[::2], edges[1::2]
        long = stops - starts >= needed
        change[starts[long]] += 1
        change[stops[long] + period] -= 1
    return float(np.count_nonzero(np.cumsum(change[:-1])) / length) if length else 0.0


def repeated_at_most(
    tokens: NDArray[np.integer], *, min_repeats: int, max_period: int = MAX_PERIOD
) -> NDArray[np.float64]:
    """Return `[B]`, what `repeated_share` of each of several sequences can be at most.

    A stretch of period n with r equal pairs covers r + n positions, and counts if r is at
    least n (min_repeats - 1); so what it covers is at most r min_repeats / (min_repeats - 1).
    Pairs are counted for all sequences at once, and most are far below any limit.

    Args:
        tokens: `[B, T]` integers of any type.
        min_repeats: see `repeated_share`.
        max_period: likewise.
    """
    num, length = tokens.shape
    covered = np.zeros(num)
    for period in range(1, min(max_period, length // min_repeats) + 1):
        pairs = np.count_nonzero(tokens[:, period:] == tokens[:, :-period], axis=1)
        covered += np.where(pairs >= period * (min_repeats - 1), pairs, 0)
    return covered * (min_repeats / (min_repeats - 1)) / max(length, 1) + _ROUNDING
