"""metaseq `skip_spike` (f7ffa5f): a loss that is a multiple of its exponential mean."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer


@dataclass(frozen=True, kw_only=True)
class MetaseqEwm(Peer):
    """Flag a loss above `ratio` times its exponential mean, which it then does not enter.

        x / ewm > ratio; else ewm = 0.8 ewm + 0.2 x

    The tool leaves the ratio to the user (its own default, -1, freezes the mean at the first
    loss), so only the tuned rule says something; 1.25 is where the tuning starts. NaN is not
    flagged and makes the mean NaN.

    Reference: facebookresearch/metaseq, `metaseq/trainer.py`.
    """

    name: ClassVar[str] = "metaseq EWM"
    signals: ClassVar[tuple[str, ...]] = ("loss",)
    threshold: ClassVar[str] = "ratio"
    neutral: ClassVar[float] = 1.0
    ratio: float = 1.25
    span: int = 9

    def decide(self, prepared: dict[str, Any]) -> Flags:
        values = prepared["loss"]
        flags = np.zeros(values.shape, dtype=bool)
        alpha = 2 / (self.span + 1)
        mean = np.array(values[0])
        for step, value in enumerate(values[1:], start=1):
            flags[step] = value / mean > self.ratio
            mean = np.where(flags[step], mean, (1 - alpha) * mean + alpha * value)
        return flags
