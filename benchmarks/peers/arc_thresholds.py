"""ARC `Controller` (arc-training 5.2.0.post1): limits calibrated on the first fifty steps."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer, Trace
from benchmarks.peers.rolling import sums_before


@dataclass(frozen=True, kw_only=True)
class ArcThresholds(Peer):
    """Flag a non-finite value, or one above a limit learned from the first fifty steps.

        loss > max(10, min(mean + 10 max(sd, mean / 10), max(100 mean, 100), 1e6))
        norm > max(100, min(mean + 10 max(sd, mean / 10), 1e8))
        loss > 10 mean(last 5)

    Every number that says how far is far is scaled by `scale` when the rule is tuned.

    Reference: arc-training on PyPI, its documentation of the calibrated thresholds. The
    slope, weight and Lyapunov rules of the tool need more than two traces.
    """

    name: ClassVar[str] = "ARC"
    signals: ClassVar[tuple[str, ...]] = ("loss", "grad_norm")
    threshold: ClassVar[str] = "scale"
    scale: float = 1.0
    calibration: int = 50
    recent: int = 5

    def prepare(self, signal: str, values: Trace) -> Any:
        first = np.ma.masked_invalid(values[: self.calibration])
        mean = np.ma.filled(first.mean(axis=0), np.nan)
        deviation = np.ma.filled(first.std(axis=0), np.nan)
        total, count = sums_before(np.where(np.isfinite(values), values, 0.0), self.recent)
        last = np.where((count == self.recent)[:, None], total / self.recent, np.inf)
        return values, mean, np.maximum(deviation, 0.1 * mean), last

    def decide(self, prepared: dict[str, Any]) -> Flags:
        far, flags = 10 * self.scale, []
        for signal, (values, mean, spread, last) in prepared.items():
            if signal == "loss":
                top = np.minimum(np.maximum(100 * mean, 100), 1e6)
                limit = np.maximum(far, np.minimum(mean + far * spread, top))
                sudden = values > (1 + 9 * self.scale) * last
            else:
                limit = np.maximum(10 * far, np.minimum(mean + far * spread, 1e8))
                sudden = np.zeros(values.shape, dtype=bool)
            calibrated = (np.arange(len(values)) >= self.calibration)[:, None]
            flags.append(~np.isfinite(values) | (calibrated & (values > limit)) | sudden)
        return np.asarray(flags[0] | flags[1])
