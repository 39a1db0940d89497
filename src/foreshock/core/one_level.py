"""Whether a series went on at one other level, and at which factor."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.looking import Past, graded
from foreshock.core.stats import MAD_TO_SD

LEAST_READINGS: Final = 5
"""Of a level, without which it is none. Our choice."""
_COARSEST: Final = 0.1


def is_whole(factor: float, error: float) -> bool:
    """Whether it is a whole number or a power of two, as far as its error lets one say.

    Of a number that is only known to a quarter of one, or to a tenth of itself, it is not said.
    """
    if error > _COARSEST:
        return False
    power = 2.0 ** round(math.log2(factor))
    nearest = [power] if power >= 2 else []
    if 2 <= round(factor) <= 0.25 / error:
        nearest.append(round(factor))
    return any(abs(factor / one - 1) <= error for one in nearest)


def one_level(logs: NDArray[np.float64], past: Past) -> tuple[int | None, float, float]:
    """From which reading on it stands on one other level, how clearly, and its factor.

    Clearly: its noise is no larger than before, its halves agree, and the step before stood
    at the level of the past.
    """
    noise = past.spread / past.median
    level = float(np.median(logs[-LEAST_READINGS:]))
    away = abs(level)
    if away <= 4 * noise:
        return None, 0.0, 1.0
    near = np.abs(logs - level) <= max(0.25 * away, 5 * noise)
    last_far = np.flatnonzero(~near)
    # One reading in ten may be an outlier of its own.
    start = 0
    if len(last_far):
        tails = 1 + last_far
        good = [int(one) for one in tails if near[one:].sum() >= 0.9 * len(near[one:])]
        start = 0 if near.mean() >= 0.9 and near[0] else (min(good) if good else len(logs))
    after = logs[start:]
    if len(after) < LEAST_READINGS:
        return None, 0.0, 1.0
    centre = float(np.median(after))
    spread = MAD_TO_SD * float(np.median(np.abs(after - centre)))
    half = len(after) // 2
    apart = abs(float(np.median(after[:half])) - float(np.median(after[half:])))
    # Of so few readings medians and deviations are noisy themselves.
    error = 2.5 * noise / math.sqrt(max(1, half))
    steady = 1 - graded(spread, 2 * noise, 4 * noise)
    level_kept = 1 - graded(apart, max(0.05 * away, error), max(0.2 * away, 2 * error))
    before = logs[:start]
    # What lies between the levels on the way is no step from one to the other.
    on_the_way = np.count_nonzero((np.abs(before) > 5 * noise) & (np.abs(before) < 0.75 * away))
    at_once = 1 - graded(float(on_the_way), 0.0, 3.0)
    return start, min(steady, level_kept, at_once), math.exp(centre)
