"""MindFormers `use_skip_data_by_global_norm` (fd4deeb): a fixed limit of the gradient norm."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer


@dataclass(frozen=True, kw_only=True)
class FixedNorm(Peer):
    """Flag a global norm of `limit` or more: the step is left out.

        not g < limit

    so that a NaN is flagged too. The tool also stops the job after ten in a row.

    Reference: mindspore-lab/mindformers, `global_norm_spike_threshold`.
    """

    name: ClassVar[str] = "fixed norm"
    signals: ClassVar[tuple[str, ...]] = ("grad_norm",)
    threshold: ClassVar[str] = "limit"
    limit: float = 3.0

    def decide(self, prepared: dict[str, Any]) -> Flags:
        return np.asarray(~(prepared["grad_norm"] < self.limit))
