"""ATorch `OnlineDynamicEWMA` (0.2.5): a z-score whose limit follows recent z-scores."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer


@dataclass(frozen=True, kw_only=True)
class AtorchEwma(Peer):
    """Flag a norm whose z-score passes `z` times the spread of the last z-scores.

        (x - m) / s > z * max(1, sd of the last 120 z-scores)
        m' = m + a (x - m), s'^2 = (1 - a) (s^2 + a (x - m) (x - m')), a = 0.02

    from m = s = 0. A z-score that is remembered is that after the update, and 0 in the 120
    steps of the warm-up. A flagged value is not learned; a NaN is, and ends the rule.

    Reference: intelligent-machine-learning/atorch, `local_sgd/utils/anomaly_detection.py`.
    """

    name: ClassVar[str] = "ATorch EWMA"
    signals: ClassVar[tuple[str, ...]] = ("grad_norm",)
    threshold: ClassVar[str] = "z"
    z: float = 3.0
    alpha: float = 0.02
    warmup: int = 120

    def decide(self, prepared: dict[str, Any]) -> Flags:
        values = prepared["grad_norm"]
        flags = np.zeros(values.shape, dtype=bool)
        runs = np.arange(values.shape[1])
        mean, variance = np.zeros(len(runs)), np.zeros(len(runs))
        recent = np.zeros((self.warmup, len(runs)))
        held = np.zeros(len(runs), dtype=np.int64)
        for step, value in enumerate(values):
            if step >= self.warmup:
                limit = self.z * np.maximum(1.0, recent.std(axis=0, ddof=1))
                flags[step] = (value - mean) / np.sqrt(variance) > limit
            kept = ~flags[step]
            before = value - mean
            mean = np.where(kept, mean + self.alpha * before, mean)
            moved = (1 - self.alpha) * (variance + self.alpha * before * (value - mean))
            variance = np.where(kept, moved, variance)
            held[kept] += 1
            score = (value - mean) / np.sqrt(variance) if step + 1 >= self.warmup else 0 * mean
            recent[(held[kept] - 1) % self.warmup, runs[kept]] = score[kept]
        return flags
