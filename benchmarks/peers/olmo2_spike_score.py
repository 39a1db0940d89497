"""The spike score of the OLMo 2 report: values far from the mean of the last thousand."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer, Trace
from benchmarks.peers.rolling import mean_std_before


@dataclass(frozen=True, kw_only=True)
class Olmo2SpikeScore(Peer):
    """Flag a value at least `sigmas` deviations from the mean of the last thousand.

        |x - mean| >= sigmas * sd, over the previous 1,000 values

    Blind until the window is full. Meant for loss and gradient norm; the report counts the
    share of such values. A non-finite value is not counted, and none within the window
    leaves a mean.

    Reference: OLMo 2 report, arXiv:2501.00656.
    """

    name: ClassVar[str] = "OLMo 2 score"
    signals: ClassVar[tuple[str, ...]] = ("loss", "grad_norm")
    threshold: ClassVar[str] = "sigmas"
    sigmas: float = 7.0
    window: int = 1000

    def prepare(self, signal: str, values: Trace) -> Any:
        mean, deviation, count = mean_std_before(values, self.window, ddof=0)
        return (
            np.abs(values - mean),
            deviation,
            (count == self.window)[:, None] & (deviation >= 1e-10),
        )

    def decide(self, prepared: dict[str, Any]) -> Flags:
        found = [
            full & (distance >= self.sigmas * deviation)
            for distance, deviation, full in prepared.values()
        ]
        return np.asarray(np.logical_or.reduce(found))
