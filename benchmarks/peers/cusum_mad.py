"""trainscope `ChangePointDetector` (1.8.1): a two-sided CUSUM on a robust z-score."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer, Trace
from benchmarks.peers.rolling import median_mad_of_each


@dataclass(frozen=True, kw_only=True)
class CusumMad(Peer):
    """Flag when the summed excess of the robust z-score passes `limit`, up or down.

        z = (x - median) / max(1.4826 MAD, 1e-12), over the previous 200 finite losses
        P = max(0, P + z - k), N = max(0, N - z - k); flag if P >= h or N >= h, then both = 0

    Blind for 30 losses. A NaN is passed over without a flag; an infinite loss is flagged.

    Reference: kaelvalen/trainscope, `core/detectors/changepoint.py`; Page 1954.
    """

    name: ClassVar[str] = "CUSUM-MAD"
    signals: ClassVar[tuple[str, ...]] = ("loss",)
    threshold: ClassVar[str] = "limit"
    limit: float = 6.0
    slack: float = 1.0
    window: int = 200
    warmup: int = 30

    def prepare(self, signal: str, values: Trace) -> Any:
        scores = np.full(values.shape, np.nan)
        finite = np.isfinite(values)
        runs = [values[finite[:, place], place] for place in range(values.shape[1])]
        found = median_mad_of_each([run[:-1] for run in runs], self.window)
        for place, (run, (median, mad)) in enumerate(zip(runs, found, strict=True)):
            score = np.full(len(run), np.nan)
            score[1:] = (run[1:] - median) / np.maximum(1.4826 * mad, 1e-12)
            score[: self.warmup] = np.nan
            scores[finite[:, place], place] = score
        watched = (np.arange(len(values)) >= self.warmup)[:, None]
        return np.where(np.isinf(values) & watched, values, scores)

    def decide(self, prepared: dict[str, Any]) -> Flags:
        scores = prepared["loss"]
        flags = np.zeros(scores.shape, dtype=bool)
        above, below = np.zeros(scores.shape[1]), np.zeros(scores.shape[1])
        for step, score in enumerate(scores):
            seen = ~np.isnan(score)
            above = np.where(seen, np.maximum(above + score - self.slack, 0), above)
            below = np.where(seen, np.maximum(below - score - self.slack, 0), below)
            flags[step] = seen & ((above >= self.limit) | (below >= self.limit))
            above[flags[step]] = below[flags[step]] = 0
        return flags
