"""llm-foundry `OutlierDetector` (0.22.0): a multiple of a mean that is 500 steps old."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer, Trace
from benchmarks.peers.rolling import sums_before


@dataclass(frozen=True, kw_only=True)
class DelayedMean(Peer):
    """Flag a norm above `multiple` times the mean of 500 to 1,000 steps ago.

        x > multiple * mean(x[T - 2 d + 1 : T - d + 1]), d = 500

    The delay keeps a cluster of outliers from lifting its own mean. The mean is that of fewer
    values until step 1,000; before step 500 there is none.

    Reference: mosaicml/llm-foundry, `llmfoundry/optim/outlier_detection.py`.
    """

    name: ClassVar[str] = "delayed mean"
    signals: ClassVar[tuple[str, ...]] = ("grad_norm",)
    threshold: ClassVar[str] = "multiple"
    neutral: ClassVar[float] = 1.0
    multiple: float = 7.5
    delay: int = 500

    def prepare(self, signal: str, values: Trace) -> Any:
        mean = np.full(values.shape, np.nan)
        total, count = sums_before(values, self.delay)
        known = total / np.maximum(count, 1)[:, None]
        mean[self.delay :] = known[1 : max(len(values) - self.delay + 1, 1)]
        return values, mean

    def decide(self, prepared: dict[str, Any]) -> Flags:
        values, mean = prepared["grad_norm"]
        return np.asarray(values > self.multiple * mean)
