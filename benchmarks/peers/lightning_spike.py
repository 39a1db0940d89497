"""Lightning `SpikeDetection` (2.6.6): a loss far from the mean of the last accepted ones."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer


@dataclass(frozen=True, kw_only=True)
class LightningSpike(Peer):
    """Flag a loss that rose and lies `rtol` means from the mean of the last ten accepted.

        t >= 1 and (x not finite or (x > last and |x - mean| >= rtol |mean|))

    Only what is not flagged becomes `last` and enters the mean.

    Reference: Lightning-AI/pytorch-lightning, `src/lightning/fabric/utilities/spike.py`.
    """

    name: ClassVar[str] = "Lightning"
    signals: ClassVar[tuple[str, ...]] = ("loss",)
    threshold: ClassVar[str] = "rtol"
    rtol: float = 2.0
    window: int = 10
    warmup: int = 1

    def decide(self, prepared: dict[str, Any]) -> Flags:
        values = prepared["loss"]
        flags = np.zeros(values.shape, dtype=bool)
        runs = np.arange(values.shape[1])
        recent = np.full((self.window, len(runs)), np.nan)
        held = np.zeros(len(runs), dtype=np.int64)
        last = np.zeros(len(runs))
        for step, value in enumerate(values):
            if step >= self.warmup:
                # a plain sum over what is held: a NaN accepted in the warm-up stays one
                filled = np.arange(self.window)[:, None] < held
                mean = np.where(filled, recent, 0.0).sum(axis=0) / np.clip(held, 1, self.window)
                far = np.abs(value - mean) >= np.abs(self.rtol * mean)
                flags[step] = ~np.isfinite(value) | ((value > last) & far)
            kept = ~flags[step]
            recent[held[kept] % self.window, runs[kept]] = value[kept]
            held[kept] += 1
            last = np.where(kept, value, last)
        return flags
