"""A shard that is noise: bytes without any text in them."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.fault import DataFault


@final
@dataclass(frozen=True, kw_only=True)
class RandomBytes(DataFault):
    """Replace windows by bytes that are drawn evenly from all 256.

    What a decompressed or decrypted file looks like when it is read as text. Nothing can be
    learned of it but that it is even, so its loss goes to ln 256 = 5.55 and stays there.

    Args:
        intensity: probability that a window is replaced, 0 to 1.

    Raises:
        ConfigError: the intensity is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin, 20 such batches: +2.0,
    +3.7 and +5.8 in the first five, +0.03 to +0.2 twenty steps after the last. Gradient norm
    and loss alarm in the first step.

    Reference: random tokens as the plainest bad batch; our choice of bytes.
    """

    name: ClassVar[str] = "random_bytes"
    cause: ClassVar[str] = "data_batch"

    intensity: float = 1.0

    def __post_init__(self) -> None:
        self.require_share("intensity")

    def poison(self, windows: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        hit = rng.random(len(windows)) < self.intensity
        noise = rng.integers(256, size=windows.shape, dtype=np.uint8)
        return np.where(hit[:, None], noise, windows)
