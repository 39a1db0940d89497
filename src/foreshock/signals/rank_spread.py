"""How far the ranks lie apart in their losses, and which one stands out."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from foreshock.core.names import LOSS_SPREAD, RANK_OF_LARGEST_LOSS, series_name
from foreshock.core.signal import (
    Attached,
    Exactness,
    Moment,
    Phase,
    Reduction,
    Signal,
    Site,
    Values,
)
from foreshock.ranks.exchange import num_ranks


class _AttachedSpread(Attached):
    series = (series_name(LOSS_SPREAD.name), series_name(RANK_OF_LARGEST_LOSS.name))
    reductions = (Reduction.EACH,)

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def measure(self, moment: Moment) -> torch.Tensor:
        return torch.as_tensor(moment.loss, dtype=torch.float32, device=self._device).reshape(1)

    def finish(self, partials: Values, committed: bool) -> Values:
        broken = np.flatnonzero(~np.isfinite(partials))
        largest = int(broken[0]) if len(broken) else int(partials.argmax())
        return np.array([partials.max() - partials.min(), largest])


@dataclass(frozen=True, kw_only=True)
class RankSpreadSignal(Signal):
    """Largest less smallest loss of a rank, and the rank with the largest (or a broken) one.

    Ranks see other data, so their losses differ by the noise of a batch. A rank that always
    has the largest has other data or a fault. Nothing on one rank.
    """

    name: ClassVar[str] = "rank_spread"
    unit: ClassVar[str] = "nats"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "none"

    def attach(self, site: Site) -> Attached | None:
        if num_ranks(None) == 1:
            return None
        return _AttachedSpread(site.parameters[0][1].device)
