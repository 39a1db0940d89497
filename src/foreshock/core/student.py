"""Quantiles of Student's t far out in its tail, and limits of a mean from the bootstrap."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_MAX_TERMS = 500
_TOLERANCE = 1e-14
_CHUNK_DRAWS = 4_000_000
MIN_BOOTSTRAP_ITEMS = 8
"""With fewer, too many resamples have no spread: at 5 items one in 625 is of one item only."""


@lru_cache(maxsize=4096)
def student_quantile(tail: float, freedom: int) -> float:
    """The value that Student's t exceeds with probability `tail`.

    Args:
        tail: in (0, 0.5].
        freedom: degrees of freedom, at least 1.

    Raises:
        ValueError: an argument is out of its range.

    >>> round(student_quantile(0.001, 11), 4), round(student_quantile(0.025, 1), 4)
    (4.0247, 12.7062)

    Reference: Abramowitz and Stegun 1964, 26.7.1 (the tail as an incomplete beta function).
    """
    if not 0 < tail <= 0.5 or freedom < 1:
        raise ValueError(f"tail is {tail}, freedom {freedom}; they must be in (0, 0.5], from 1 on")
    low, high = 0.0, 1.0
    while student_tail(high, freedom) > tail:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if student_tail(middle, freedom) > tail:
            low = middle
        else:
            high = middle
        if middle in (low, high) and math.nextafter(low, high) >= high:
            break
    return (low + high) / 2


def student_tail(value: float, freedom: int) -> float:
    """Probability that Student's t exceeds `value`, at least 0.

    >>> student_tail(0.0, 5)
    0.5
    """
    x = freedom / (freedom + value * value)
    return 0.5 * _incomplete_beta(x, freedom / 2, 0.5)


def studentised_quantiles(
    differences: NDArray[np.float64], tail: float, seed: int
) -> tuple[float, float]:
    """How far the mean of a resample lies from that of the sample, in its own standard errors.

    Args:
        differences: `[n]` finite, with some spread.
        tail: probability beyond each of the two quantiles.
        seed: of the resamples: 10 are expected beyond a quantile, 2,000 are drawn at least.

    Returns:
        The lower and the upper quantile. A resample of one value has no standard error: its
        distance is infinite.

    >>> low, high = studentised_quantiles(np.arange(20.0), 0.01, seed=0)
    >>> -4 < low < -2 and 2 < high < 4
    True

    Reference: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", 12.5 (bootstrap-t).
    """
    count = len(differences)
    centred = differences - differences.mean()
    rng = np.random.default_rng(seed)
    wanted = max(2000, math.ceil(10 / tail))
    chunk = max(1, _CHUNK_DRAWS // count)
    found: list[NDArray[np.float64]] = []
    for start in range(0, wanted, chunk):
        size = (min(chunk, wanted - start), count)
        drawn = centred[rng.integers(count, size=size, dtype=np.int32)]
        mean = drawn.mean(axis=1)
        error = drawn.std(axis=1, ddof=1) / math.sqrt(count)
        with np.errstate(divide="ignore", invalid="ignore"):
            found.append(np.nan_to_num(mean / error, nan=0.0, posinf=np.inf, neginf=-np.inf))
    ordered = np.sort(np.concatenate(found))
    beyond = math.floor(tail * wanted)
    return float(ordered[beyond]), float(ordered[wanted - 1 - beyond])


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(1 - x, b, a)
    front = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    tiny = 1e-300
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1) or tiny)
    fraction = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d or tiny)
            c = 1.0 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1.0) < _TOLERANCE:
            break
    return math.exp(front) * fraction
