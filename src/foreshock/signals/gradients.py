"""Gradient norms by module group, non-finite gradients, and what clipping took away."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from foreshock.core.names import (
    CLIP_SHARE,
    GRAD_NORM,
    NUM_NONFINITE_GRADS,
    module_group,
    series_name,
)
from foreshock.core.signal import Attached, Exactness, Moment, Phase, Signal, Site


class _AttachedGradients(Attached):
    def __init__(self, site: Site) -> None:
        groups = [module_group(path) for path, _ in site.parameters]
        names = list(dict.fromkeys(groups))
        device = site.parameters[0][1].device
        self._places = torch.tensor([names.index(group) for group in groups], device=device)
        self._num_groups = len(names)
        self._clip = site.clip
        self.series = (
            series_name(GRAD_NORM.name),
            series_name(NUM_NONFINITE_GRADS.name),
            series_name(CLIP_SHARE.name),
            *(series_name(GRAD_NORM.name, group) for group in names),
        )

    def measure(self, moment: Moment) -> torch.Tensor:
        norms = moment.grad_norms.to(torch.float64)
        total = moment.grad_norm.to(torch.float64)
        broken = (~torch.isfinite(norms)).sum().to(torch.float64)
        share = torch.zeros_like(total)
        if self._clip is not None:
            share = 1 - (self._clip / (total + 1e-6)).clamp(max=1.0)
        squares = torch.zeros(self._num_groups, dtype=torch.float64, device=norms.device)
        squares.index_add_(0, self._places, norms.square())
        return torch.cat([torch.stack([total, broken, share]), squares.sqrt()])


@dataclass(frozen=True, kw_only=True)
class GradientSignal(Signal):
    """Gradient norm before clipping, of the whole and of each module group.

    Also the number of gradient tensors that hold a NaN or an Inf, and the share of the
    norm that clipping removed, `1 - min(1, clip / norm)`. All of it comes from the
    per-parameter norms that the clip needs anyway; a non-finite entry makes its
    tensor's norm non-finite, so that none can hide. Group squares are summed in fp64.
    """

    name: ClassVar[str] = "gradients"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "none beyond the clip's"

    def attach(self, site: Site) -> Attached:
        return _AttachedGradients(site)
