"""A batch that is hard, and nothing worse: good data of an unusual kind, for one step."""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.fault import DataFault

_LETTERS: Final = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)


@final
@dataclass(frozen=True, kw_only=True)
class HardBatch(DataFault):
    """Replace windows by tables of numbers, or write them in capitals.

    Legal samples that a model of prose and code has hardly met. Meant for the batch of one
    step: nothing is wrong, and nothing needs to be done.

    Args:
        intensity: probability that a window is such a one, 0 to 1.

    Raises:
        ConfigError: the intensity is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin, one batch: +0.5, +0.8
    and +1.7 in that step, below 0.02 five steps later. The loss alarms once at 0.65 and 1,
    nothing else.

    No source: our choice, as the plainest thing that is not to be taken for bad data.
    """

    name: ClassVar[str] = "hard_batch"
    cause: ClassVar[str] = "benign"

    intensity: float = 1.0

    def __post_init__(self) -> None:
        self.require_share("intensity")

    def poison(self, windows: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        poisoned = windows.copy()
        for index in np.flatnonzero(rng.random(len(windows)) < self.intensity):
            if rng.random() < 0.5:
                poisoned[index] = _table(len(windows[index]), rng)
            else:
                small = np.isin(windows[index], _LETTERS)
                poisoned[index] = np.where(small, windows[index] & 0xDF, windows[index])
        return poisoned


def _table(length: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Rows of four numbers between tabs, cut at a random place."""
    numbers = rng.integers(10_000, size=(length // 8 + 8, 4)).tolist()
    text = "\n".join("\t".join(str(one) for one in row) for row in numbers).encode()
    start = int(rng.integers(16))
    return np.frombuffer(text[start : start + length], dtype=np.uint8)
