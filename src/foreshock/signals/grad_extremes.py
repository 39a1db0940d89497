"""The largest gradient entry, and how many are not finite."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from foreshock.core.names import GRAD_ABSMAX, NUM_NONFINITE_ENTRIES, series_name
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
from foreshock.norms import largest_magnitudes, local
from foreshock.ranks.shares import Shares
from foreshock.sampling import Sampling, gradient_of


class _AttachedExtremes(Attached):
    needs_true_gradients = True

    def __init__(self, site: Site, signal: "GradExtremesSignal") -> None:
        self._groups = site.group_table()
        self._exact, self._count = signal.exact, signal.count_entries
        self._parameters = [parameter for _, parameter in site.parameters]
        self._sampling = Sampling.of(site)
        series = self._groups.whole_and_each(GRAD_ABSMAX.name)
        num = len(self._parameters)
        self._shares = Shares(site, self._sampling.device)
        largest = Reduction.MAX if self._shares.are_sharded else Reduction.SAME
        self.reductions = [largest] * num
        if self._count:
            series += [series_name(NUM_NONFINITE_ENTRIES.name, path) for path, _ in site.parameters]
            self.reductions += [self._shares.counts_add_up] * num
        self.series = tuple(series)

    def measure(self, moment: Moment) -> torch.Tensor:
        device = self._sampling.device
        grads: list[Any] = []
        known = moment.grad_largest
        if self._count or (self._exact and known is None):
            grads = [gradient_of(parameter) for parameter in self._parameters]
        factor = moment.true_factor
        if known is not None:
            largest, factor = known, 1.0
        elif self._exact:
            none = torch.zeros((), device=device)
            found = iter(largest_magnitudes([g for g in grads if g is not None] or [none], device))
            largest = torch.stack([none if g is None else next(found) for g in grads])
        else:
            largest = self._sampling.largest(self._sampling.gradients(moment)).to(torch.float32)
            factor, _ = self._sampling.factors(moment)
        parts = [largest * factor]
        if self._count:
            parts.append(self._shares.of_counts(self._nonfinite(moment, grads)))
        return torch.cat(parts)

    def _nonfinite(self, moment: Moment, grads: list[Any]) -> torch.Tensor:
        """Entries of each gradient that are NaN or Inf, `[P]`; only a broken norm is looked into.

        On an accelerator that would be to wait for it, so that there all are.
        """
        device = self._sampling.device
        broken = ~torch.isfinite(moment.grad_norms)
        suspects = broken.tolist() if broken.is_cpu else [True] * len(grads)
        counts = [
            (~torch.isfinite(local(grad))).sum() if grad is not None and suspect else 0
            for grad, suspect in zip(grads, suspects, strict=True)
        ]
        return torch.stack([torch.as_tensor(one, device=device) for one in counts]).float()

    def finish(self, partials: Values, committed: bool) -> Values:
        num = len(self._parameters)
        groups = self._groups.largest(partials[:num])
        return np.concatenate([[groups.max(initial=0.0)], groups, partials[num:]])


@dataclass(frozen=True, kw_only=True)
class GradExtremesSignal(Signal):
    """Largest magnitude of a gradient entry before clipping, of the whole and of each group.

    Exact where the fused passes take it along with the norms (see `foreshock.fused`). Else from
    the shared sample: never above the truth, so a lower bound. A sample of 4,096 among millions
    misses a lone outlier, which `exact` finds at the price of one pass.

    Args:
        exact: look at every entry.
        count_entries: also count the NaN and Inf entries of every parameter.
    """

    name: ClassVar[str] = "grad_extremes"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.GRADIENT
    passes: ClassVar[str] = (
        "none if fused; else one over a sample of the gradients, or over all if exact"
    )
    exact: bool = False
    count_entries: bool = False

    @property
    def exactness(self) -> Exactness:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Exact if asked for, else a lower bound."""
        return Exactness.EXACT if self.exact else Exactness.BOUND

    def attach(self, site: Site) -> Attached:
        return _AttachedExtremes(site, self)
