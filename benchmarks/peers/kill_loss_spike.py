"""llm-foundry `KillLossSpike` (0.22.0): a loss that stays a multiple of its mean."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer, Trace
from benchmarks.peers.rolling import sums_before


@dataclass(frozen=True, kw_only=True)
class KillLossSpike(Peer):
    """Flag when the loss was `multiple` times its window's mean for more than four steps.

        x >= multiple * mean(W) more than `patience` times in a row,
        or from step 2 |W| on at least half of W above `cap`

    W holds max(100, 5 % of all steps) losses and is blind until it is full; every loss
    enters it. NaN passes as harmless. All steps are `total_steps`, or those of the trace.

    Reference: mosaicml/llm-foundry, `llmfoundry/callbacks/kill_loss_spike_callback.py`.
    """

    name: ClassVar[str] = "KillLossSpike"
    signals: ClassVar[tuple[str, ...]] = ("loss",)
    threshold: ClassVar[str] = "multiple"
    neutral: ClassVar[float] = 1.0
    multiple: float = 2.0
    patience: int = 4
    cap: float = 10.0
    window: int = 100
    window_share: float = 0.05
    total_steps: int | None = None

    def prepare(self, signal: str, values: Trace) -> Any:
        window = max(self.window, round(self.window_share * (self.total_steps or len(values))))
        total, count = sums_before(values, window)
        high, _ = sums_before((values > self.cap).astype(np.float64), window)
        full = (count == window)[:, None]
        late = (np.arange(len(values)) >= 2 * window)[:, None]
        return values, total / window, full, late & full & (high / window >= 0.5)

    def decide(self, prepared: dict[str, Any]) -> Flags:
        values, mean, full, high = prepared["loss"]
        above = full & (values >= self.multiple * mean)
        in_a_row = np.zeros(values.shape[1], dtype=np.int64)
        flags = np.array(high)
        for step, row in enumerate(above):
            in_a_row = np.where(row, in_a_row + 1, 0)
            flags[step] |= in_a_row > self.patience
        return flags
