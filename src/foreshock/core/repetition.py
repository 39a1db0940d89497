"""How much of a sequence is one n-gram repeated back to back."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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


def repeated_shares(
    sequences: Sequence[NDArray[np.integer]], *, min_repeats: int, max_period: int = MAX_PERIOD
) -> NDArray[np.float64]:
    """Return `[B]`, the `repeated_share` of each of several sequences, in one pass over all.

    They are laid end to end, and no two tokens of different sequences are ever equal.

    Args:
        sequences: each `[T]` integers of any type; their lengths may differ.
        min_repeats: see `repeated_share`.
        max_period: likewise.

    >>> repeated_shares([np.array([3, 3, 3]), np.array([3, 3, 4])], min_repeats=3).tolist()
    [1.0, 0.0]
    """
    lengths = np.array([len(one) for one in sequences], dtype=np.int64)
    stops = np.cumsum(lengths)
    total = int(lengths.sum())
    if not total:
        return np.zeros(len(lengths))
    tokens = np.concatenate([one.astype(np.int64, copy=False) for one in sequences])
    change = np.zeros(total + 1, dtype=np.int32)
    same = np.zeros(total + 1, dtype=bool)  # as in `repeated_share`
    ends = np.zeros(0, dtype=np.int64)
    for period in range(1, min(max_period, int(lengths.max()) // min_repeats) + 1):
        ends = np.concatenate([ends, stops - period])  # whose partner is in the next sequence
        stop = total - period + 1
        np.equal(tokens[period:], tokens[:-period], out=same[1:stop])
        same[stop:] = False
        same[ends + 1] = False
        needed = period * (min_repeats - 1)
        if np.count_nonzero(same) < needed:
            continue
        edges = np.flatnonzero(same[1:] != same[:-1])
        if len(edges) % 2:
            edges = np.append(edges, total)
        starts, past = edges[::2], edges[1::2]
        long = past - starts >= needed
        change[starts[long]] += 1
        change[past[long] + period] -= 1
    covered = np.concatenate([[0], np.cumsum(np.cumsum(change[:-1]) > 0)])
    return (covered[stops] - covered[stops - lengths]) / np.maximum(lengths, 1)
