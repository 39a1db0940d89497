"""trainspotter `spikes` and `grad_norm` (0.2.6): a modified z-score over 21 steps."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer, Trace
from benchmarks.peers.rolling import median_mad_of_each


@dataclass(frozen=True, kw_only=True)
class TrainspotterZ(Peer):
    """Flag a loss far from its trailing median on either side, or a norm far above it.

        0.6745 |x - median| / MAD > z on the loss (6), one-sided > grad_share * z on the norm (10)

    over the last 21 values. NaN is left to another of the tool's checks.

    Reference: antonsoo/trainspotter, table of detectors in the README.
    """

    name: ClassVar[str] = "trainspotter"
    signals: ClassVar[tuple[str, ...]] = ("loss", "grad_norm")
    threshold: ClassVar[str] = "z"
    z: float = 6.0
    grad_share: float = field(default=10.0 / 6.0)
    window: int = 21

    def prepare(self, signal: str, values: Trace) -> Any:
        runs = [np.ascontiguousarray(run) for run in values.T]
        found = median_mad_of_each(runs, self.window)
        scores = [
            0.6745 * (run - median) / np.maximum(mad, 1e-12)
            for run, (median, mad) in zip(runs, found, strict=True)
        ]
        return np.stack(scores, axis=1)

    def decide(self, prepared: dict[str, Any]) -> Flags:
        loss = np.abs(prepared["loss"]) > self.z
        return np.asarray(loss | (prepared["grad_norm"] > self.z * self.grad_share))
