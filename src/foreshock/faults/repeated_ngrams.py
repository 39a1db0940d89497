"""Documents that say the same over and over."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError
from foreshock.core.fault import DataFault


@final
@dataclass(frozen=True, kw_only=True)
class RepeatedNgrams(DataFault):
    """Fill windows with one n-gram, over and over; the n-gram is cut out of the window itself.

    So the bytes are those of good text, only their order is not. A window of a single byte
    repeats already, and is left as it is.

    Args:
        intensity: probability that a window is replaced, 0 to 1.
        shortest: bytes in an n-gram, at least.
        longest: at most; both drawn evenly.

    Raises:
        ConfigError: an argument is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin, 20 such batches:
    +0.24, +0.32 and +0.55 in the first five; held-out loss +0.02 to +0.035 after 80 steps. Only
    at 1 does anything alarm, the loss in the third step.

    Reference: n-grams of 1 to 13 tokens that repeat 32 times or more, found where gradient norms
    spike: OLMo et al. (2025), "2 OLMo 2 Furious", section 3.1, https://arxiv.org/abs/2501.00656.
    """

    name: ClassVar[str] = "repeated_ngrams"
    cause: ClassVar[str] = "repeated_text"

    intensity: float = 1.0
    shortest: int = 1
    longest: int = 13

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if not 1 <= self.shortest <= self.longest:
            raise ConfigError(
                f"RepeatedNgrams.shortest is {self.shortest} and longest {self.longest}; "
                "allowed is 1 <= shortest <= longest."
            )

    def poison(self, windows: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        poisoned = windows.copy()
        for index in np.flatnonzero(rng.random(len(windows)) < self.intensity):
            window = windows[index]
            length = min(int(rng.integers(self.shortest, self.longest + 1)), len(window))
            start = int(rng.integers(len(window) - length + 1))
            poisoned[index] = np.resize(window[start : start + length], window.shape)
        return poisoned
