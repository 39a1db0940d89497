"""axolotl `LossWatchDogCallback` (0.21.0): a loss above a fixed limit three times in a row."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer


@dataclass(frozen=True, kw_only=True)
class AxolotlWatchdog(Peer):
    """Flag when the loss was above `limit` for `patience` steps in a row.

        x > limit, three times in a row

    A NaN is not above and starts the count anew. The tool has no default limit; 5 stands in
    its example configurations.

    Reference: axolotl-ai-cloud/axolotl, `src/axolotl/utils/callbacks/__init__.py`.
    """

    name: ClassVar[str] = "axolotl"
    signals: ClassVar[tuple[str, ...]] = ("loss",)
    threshold: ClassVar[str] = "limit"
    limit: float = 5.0
    patience: int = 3

    def decide(self, prepared: dict[str, Any]) -> Flags:
        above = prepared["loss"] > self.limit
        flags = np.array(above)
        for lag in range(1, self.patience):
            flags[lag:] &= above[:-lag]
            flags[:lag] = False
        return flags
