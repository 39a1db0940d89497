"""How many alarmed steps close together are more than chance, for the rate at which a run has them.

Every run has lone steps out of range, some one in a million, some one in twelve. Three of ten mean
trouble in the first and nothing in the second.
"""

import math
from functools import lru_cache
from typing import Final

USUAL_RATE: Final = 0.005
"""Outliers a step that a run is taken to have before it shows more. Our choice."""
_PRIOR_STEPS: Final = 100


def outlier_rate(num_outliers: int, num_steps: int) -> float:
    """The rate of outliers a step, with a prior of one in two hundred that weighs 100 steps.

    Args:
        num_outliers: that were seen, in `num_steps` steps.
        num_steps: that were watched.

    >>> outlier_rate(0, 0), round(outlier_rate(200, 2400), 3)
    (0.005, 0.08)
    """
    return (USUAL_RATE * _PRIOR_STEPS + num_outliers) / (_PRIOR_STEPS + num_steps)


def false_confirmations(num_alarmed: int, rate: float, within_steps: int) -> float:
    """Confirmations a step by outliers that come at `rate`, each on its own.

    That is an alarmed step now, and the others, binomial, before it.

    Args:
        num_alarmed: alarmed steps that confirm, the present one among them.
        rate: outliers a step.
        within_steps: the last steps that count, the present one among them.
    """
    others = within_steps - 1
    return rate * sum(
        math.comb(others, count) * rate**count * (1 - rate) ** (others - count)
        for count in range(max(0, num_alarmed - 1), others + 1)
    )


@lru_cache(maxsize=4096)
def steps_to_confirm(usually: int, rate: float, within_steps: int) -> int:
    """Alarmed steps that confirm as rarely by chance as `usually` do in a run of few outliers.

    Args:
        usually: alarmed steps that confirm in a run that has one outlier in 200 steps.
        rate: outliers a step.
        within_steps: the last steps that count. A result above it says that none are enough.

    >>> [steps_to_confirm(3, rate, 10) for rate in (0.0, 0.005, 0.02, 1 / 12, 0.5)]
    [3, 3, 5, 7, 11]
    """
    accepted = false_confirmations(usually, USUAL_RATE, within_steps)
    needed = usually
    while needed <= within_steps and false_confirmations(needed, rate, within_steps) > accepted:
        needed += 1
    return needed
