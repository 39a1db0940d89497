"""OLMo-core `SkipStepOptimizer` (release 3.0.0): skip a step whose loss or norm stands out."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer, Trace
from benchmarks.peers.rolling import mean_std_before


@dataclass(frozen=True, kw_only=True)
class OlmoSkipStep(Peer):
    """Flag unless loss and gradient norm are both within `sigmas` deviations of their means.

        not (L - mean <= k sd and G - mean <= k sd), over the previous 128 steps

    Blind for the first 63 steps. Every value enters the window, skipped or not, so that a
    NaN flags itself and each step until it leaves the window.

    Reference: allenai/OLMo-core, `src/olmo_core/optim/skip_step_optimizer.py`.
    """

    name: ClassVar[str] = "OLMo SkipStep"
    signals: ClassVar[tuple[str, ...]] = ("loss", "grad_norm")
    threshold: ClassVar[str] = "sigmas"
    sigmas: float = 6.0
    window: int = 128

    def prepare(self, signal: str, values: Trace) -> Any:
        mean, deviation, count = mean_std_before(values, self.window, ddof=1)
        watched = count + 1 >= max(2, self.window // 2)
        return values - mean, deviation, watched

    def decide(self, prepared: dict[str, Any]) -> Flags:
        within = [excess <= self.sigmas * deviation for excess, deviation, _ in prepared.values()]
        watched = prepared["loss"][2]
        return np.asarray(watched[:, None] & ~np.logical_and.reduce(within))
