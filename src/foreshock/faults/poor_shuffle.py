"""A shuffle with a short period: few samples come again and again."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError
from foreshock.core.fault import OrderFault


@final
@dataclass(frozen=True, kw_only=True)
class PoorShuffle(OrderFault):
    """Draw the samples of a stretch from few of them, in a cycle.

    As of a linear congruential generator with a bad multiplier, whose orbit is short. Of N
    samples `round(shortest^intensity * N^(1 - intensity))` come, each as often as the next, in
    an order that is shuffled once.

    Args:
        intensity: 0 to 1: no sample twice, to only `shortest` different ones.
        shortest: samples in the shortest cycle, at least 1.

    Raises:
        ConfigError: an argument is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin, over 75 steps: -0.2,
    -0.3 and -0.9 at the end, while held-out loss is +0.01, +0.06 and +0.64. Nothing alarms.

    Reference: a linear congruential generator in the place of a permutation, and what the loss
    made of it: Hall et al. (2025), "Marin 32B retrospective",
    https://marin.readthedocs.io/en/latest/reports/marin-32b-retro/.
    """

    name: ClassVar[str] = "poor_shuffle"
    cause: ClassVar[str] = "data_order"

    intensity: float = 1.0
    shortest: int = 64

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if self.shortest < 1:
            raise ConfigError(f"PoorShuffle.shortest is {self.shortest}; it must be >= 1.")

    def reorder(self, first: int, num_samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
        due = np.arange(first, first + num_samples, dtype=np.int64)
        if self.intensity == 0 or num_samples <= self.shortest:
            return due
        period = round(self.shortest**self.intensity * num_samples ** (1 - self.intensity))
        return np.resize(rng.permutation(due)[:period], num_samples)
