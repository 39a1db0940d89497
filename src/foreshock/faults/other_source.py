"""A mixture that changed: text of another script from here on."""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.fault import DataFault

_LETTERS: Final = 0x430  # Cyrillic small a; 32 letters from there on


@final
@dataclass(frozen=True, kw_only=True)
class OtherSource(DataFault):
    """Write windows of text in Cyrillic: good text of a source that was not trained on.

    Each Latin letter becomes a Cyrillic one, two bytes in UTF-8, so that a window holds the
    beginning of its text only. It can be learned as any text can.

    Args:
        intensity: share of the new source in the mixture, 0 to 1.

    Raises:
        ConfigError: the intensity is out of its range.

    Meant for all steps from some step on: the mixture has changed for good.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin, for good: +1.9, +3.5
    and +5.5 in the first five steps, and back after 40; held-out loss of the old mixture +0.05,
    +0.10 and +2.0 after 80. Gradient norm and loss alarm in the first step.

    No source: our choice, as the smallest change of a mixture that a tokenizer allows.
    """

    name: ClassVar[str] = "other_source"
    cause: ClassVar[str] = "data_mix_change"

    intensity: float = 1.0

    def __post_init__(self) -> None:
        self.require_share("intensity")

    def poison(self, windows: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        poisoned = windows.copy()
        for index in np.flatnonzero(rng.random(len(windows)) < self.intensity):
            poisoned[index] = _in_cyrillic(windows[index])
        return poisoned


def _in_cyrillic(window: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`[L]`, its letters in Cyrillic and cut to the same length."""
    found = bytearray()
    for byte in window.tolist():
        letter = (byte | 0x20) - ord("a")
        if byte < 0x80 and 0 <= letter < 26:
            found += chr(_LETTERS + letter - (0 if byte & 0x20 else 0x20)).encode()
        else:
            found.append(byte)
    return np.frombuffer(bytes(found[: len(window)]), dtype=np.uint8)
