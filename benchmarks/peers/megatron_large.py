"""Megatron-LM `is_unexpectedly_large` (d98e8a6): a multiple of the first hundred's maximum."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer, Trace


@dataclass(frozen=True, kw_only=True)
class MegatronLarge(Peer):
    """Flag a value at least `multiple` times the largest of the first hundred.

        x >= multiple * max |x| over the first 100 finite values; never learned again

    NaN and infinity are passed over by this rule. Used on the loss (`--check-for-spiky-loss`)
    and on the gradient norm (`--check-for-large-grads`).

    Reference: NVIDIA/Megatron-LM, `megatron/core/rerun_state_machine.py`.
    """

    name: ClassVar[str] = "Megatron"
    signals: ClassVar[tuple[str, ...]] = ("loss", "grad_norm")
    threshold: ClassVar[str] = "multiple"
    neutral: ClassVar[float] = 1.0
    multiple: float = 10.0
    samples: int = 100

    def prepare(self, signal: str, values: Trace) -> Any:
        finite = np.isfinite(values)
        order = np.cumsum(finite, axis=0)
        learning = finite & (order <= self.samples)
        largest = np.where(learning, np.abs(values), 0.0).max(axis=0)
        return values, largest, finite & (order > self.samples)

    def decide(self, prepared: dict[str, Any]) -> Flags:
        found = [
            watched & (values >= self.multiple * largest)
            for values, largest, watched in prepared.values()
        ]
        return np.asarray(np.logical_or.reduce(found))
