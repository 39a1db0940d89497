"""What low precision takes away: overflows, underflow, the walk of the loss scale."""

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from foreshock.core.names import (
    GRAD_ZERO_SHARE,
    LOSS_SCALE_LOG2,
    OVERFLOW_SHARE,
    UNDERFLOW_SHARE,
    series_name,
)
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
from foreshock.norms import local
from foreshock.ranks.shares import Shares
from foreshock.sampling import Sampling

_FP16_SMALLEST_NORMAL = 2.0**-14
_WINDOW_STEPS = 100


class _AttachedPrecision(Attached):
    needs_true_gradients = True

    def __init__(self, site: Site) -> None:
        self._sampling = Sampling.of(site)
        self._site, self._is_scaled = site, site.is_scaled
        self._shares = Shares(site, self._sampling.device)
        sizes = [local(one).numel() for _, one in site.parameters]
        every = torch.tensor(sizes, dtype=torch.float64, device=self._sampling.device)
        self._every = self._shares.of_counts(every).sum()
        kind = self._shares.counts_add_up
        self.reductions = [kind, kind]
        self.series = (series_name(GRAD_ZERO_SHARE.name),)
        if self._is_scaled:
            self.reductions = [kind, kind, kind, Reduction.SAME]
            names = (UNDERFLOW_SHARE, LOSS_SCALE_LOG2, OVERFLOW_SHARE)
            self.series = (*self.series, *(series_name(one.name) for one in names))
        self._skipped: deque[bool] = deque(maxlen=_WINDOW_STEPS)

    def measure(self, moment: Moment) -> torch.Tensor:
        sampling = self._sampling
        if moment.grad_num_zeros is not None:
            zeros = self._shares.of_counts(moment.grad_num_zeros).sum()
        else:
            num_nonzero = sampling.num_nonzero(sampling.gradients(moment))
            zeros = self._whole(sampling.num_sampled - num_nonzero)
        found = [self._every, zeros]
        if self._is_scaled:
            grads = sampling.gradients(moment)
            scale = torch.as_tensor(self._site.loss_scale(), dtype=grads.dtype).to(grads)
            scaled = grads.abs() * (sampling.factors(moment)[0] * scale)
            found += [self._num(scaled < _FP16_SMALLEST_NORMAL), scale.to(torch.float64)]
        return torch.stack([one.reshape(()) for one in found])

    def _num(self, so: torch.Tensor) -> torch.Tensor:
        """Sampled entries of which it is so; the padding, all zeros, is taken off again."""
        return self._whole(self._sampling.sums(so.sum(dim=1)) - self._sampling.padding)

    def _whole(self, sampled: torch.Tensor) -> torch.Tensor:
        """Entries of all whole gradients, of those in each one's sample: large ones weigh more."""
        return self._shares.of_counts(sampled * self._sampling.scale).sum()

    def finish(self, partials: Values, committed: bool) -> Values:
        every = max(partials[0], 1.0)
        found = [partials[1] / every]
        if self._is_scaled:
            self._skipped.append(not committed)
            scale = partials[3]
            found += [
                partials[2] / every,
                np.log2(scale) if scale > 0 else -np.inf,
                sum(self._skipped) / len(self._skipped),
            ]
        return np.array(found)

    def state_dict(self) -> dict[str, Any]:
        return {"skipped": list(self._skipped)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._skipped.clear()
        self._skipped.extend(bool(one) for one in state["skipped"])


@dataclass(frozen=True, kw_only=True)
class PrecisionSignal(Signal):
    """Share of gradient entries that are zero; under a loss scale also underflow and overflow.

    Underflow is the share of entries whose scaled magnitude lies below fp16's smallest normal
    number, 2^-14: such entries lose digits, or vanish. Overflow is the share of the last 100
    steps whose update was skipped. The loss scale is given as its base-2 logarithm, in which
    each halving is one step down, and -Inf once it is 0. Shares of entries are from the shared
    sample, in which a tensor weighs as many as it has: 95 % err by less than 0.01 (measured on
    transformers, vocabularies of 256 to 4,096). That of zeros is exact where the fused passes
    take it along with the norms.
    """

    name: ClassVar[str] = "precision"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.SAMPLED
    passes: ClassVar[str] = "one over a sample of the gradients, none for zeros if fused"

    def attach(self, site: Site) -> Attached:
        return _AttachedPrecision(site)
