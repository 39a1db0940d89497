"""ZClip (1.0.0): a gradient norm far above its exponential mean."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer


@dataclass(frozen=True, kw_only=True)
class ZClip(Peer):
    """Flag a norm whose z-score against exponential mean and variance passes `z`.

        (g - m) / (sqrt(v) + 1e-6) > z; then m = a m + (1 - a) y, v = a v + (1 - a) (y - m)^2

    with y the norm as clipped, `m + z sqrt(v) / (score / z)`, where flagged. Mean and
    variance begin as those of the first 25 norms, which are not watched. One NaN makes both
    NaN for good.

    Reference: Kumar et al. 2025, arXiv:2504.02507; bluorion-com/ZClip.
    """

    name: ClassVar[str] = "ZClip"
    signals: ClassVar[tuple[str, ...]] = ("grad_norm",)
    threshold: ClassVar[str] = "z"
    z: float = 2.5
    alpha: float = 0.97
    warmup: int = 25

    def decide(self, prepared: dict[str, Any]) -> Flags:
        values = prepared["grad_norm"]
        flags = np.zeros(values.shape, dtype=bool)
        first = values[: self.warmup]
        mean, variance = first.mean(axis=0), first.var(axis=0)
        for step in range(self.warmup, len(values)):
            value, deviation = values[step], np.sqrt(variance)
            score = (value - mean) / (deviation + 1e-6)
            flags[step] = score > self.z
            clipped = np.where(flags[step], mean + self.z * deviation * (self.z / score), value)
            mean = self.alpha * mean + (1 - self.alpha) * clipped
            variance = self.alpha * variance + (1 - self.alpha) * (clipped - mean) ** 2
        return flags
