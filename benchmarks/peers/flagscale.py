"""FlagScale `spiky_loss` (16a2dd5): a loss well above the last accepted one."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from benchmarks.peers.peer import Flags, Peer


@dataclass(frozen=True, kw_only=True)
class FlagScale(Peer):
    """Flag a relative rise over the last accepted loss.

        (x - last) / last >= rise; an infinite x as well

    What is not flagged becomes `last`. A NaN is not flagged and becomes `last`; the value
    after it is then not flagged either. The tool starts after its warm-up of the learning
    rate, which a trace without one does not have.

    Reference: flagos-ai/FlagScale, `flagscale/train/spiky_loss.py`.
    """

    name: ClassVar[str] = "FlagScale"
    signals: ClassVar[tuple[str, ...]] = ("loss",)
    threshold: ClassVar[str] = "rise"
    rise: float = 0.2

    def decide(self, prepared: dict[str, Any]) -> Flags:
        values = prepared["loss"]
        flags = np.zeros(values.shape, dtype=bool)
        last = np.full(values.shape[1], np.nan)
        for step, value in enumerate(values):
            unknown = np.isnan(value) | np.isnan(last)
            flags[step] = ~unknown & (np.isinf(value) | ((value - last) / last >= self.rise))
            last = np.where(flags[step], last, value)
        return flags
