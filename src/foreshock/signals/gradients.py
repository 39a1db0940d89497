"""Gradient norms by module group, non-finite gradients, and what clipping took away."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from foreshock.core.adaptive import adaptive_group
from foreshock.core.groups import total_norm
from foreshock.core.names import (
    CLIP_SHARE,
    GRAD_NORM,
    GRAD_RMS_TO_EPS,
    GRAD_SHARE,
    NUM_NONFINITE_GRADS,
    series_name,
)
from foreshock.core.signal import (
    Attached,
    Exactness,
    Level,
    Moment,
    Phase,
    Reduction,
    Signal,
    Site,
    Values,
)
from foreshock.ranks.shares import Shares

_LARGEST = float(np.finfo(np.float32).max)


class _AttachedGradients(Attached):
    def __init__(self, site: Site, signal: "GradientSignal") -> None:
        self._groups = site.group_table()
        self._clip = site.clip
        self._eps = _epsilon(site.optimizer)
        self._per_parameter = signal.per_parameter
        self.reductions = (*site.norm_reductions(), Reduction.SAME)
        self._shares = Shares(site, site.parameters[0][1].device)
        series = [
            series_name(GRAD_NORM.name),
            series_name(NUM_NONFINITE_GRADS.name),
            series_name(CLIP_SHARE.name),
            *self._groups.each(GRAD_NORM.name),
            *self._groups.each(GRAD_SHARE.name),
        ]
        if self._eps:
            series += self._groups.each(GRAD_RMS_TO_EPS.name)
        if self._per_parameter:
            known = set(series)
            paths = [series_name(GRAD_NORM.name, path) for path, _ in site.parameters]
            self._own = np.array([path not in known for path in paths])
            series += [path for path in paths if path not in known]
        self.series = tuple(series)

    def measure(self, moment: Moment) -> torch.Tensor:
        clip = moment.clip if moment.clip is not None else self._clip
        norms = self._shares.of_norms(moment.grad_norms)
        limit = torch.full((1,), torch.inf if clip is None else clip, device=norms.device)
        # A finite norm that fp32 cannot hold must not look like one of a broken gradient.
        held = torch.where(torch.isfinite(norms), norms.clamp(max=_LARGEST), norms)
        return torch.cat([held.to(torch.float32), limit])

    def finish(self, partials: Values, committed: bool) -> Values:
        norms, clip = partials[:-1], partials[-1]
        broken = float(np.sum(~np.isfinite(norms)))
        norms = np.where(norms == _LARGEST, np.inf, norms)
        total = total_norm(norms)
        clipped = 1 - min(1.0, clip / (total + 1e-6)) if not np.isnan(total) else total
        groups = self._groups.norms(norms)
        share = (groups / total) ** 2 if total else np.zeros_like(groups)
        found = [[total, broken, clipped], groups, share]
        if self._eps:
            found.append(groups / np.sqrt(np.maximum(self._groups.sizes, 1)) / self._eps)
        if self._per_parameter:
            found.append(norms[self._own])
        return np.concatenate(found)


def _epsilon(optimizer: Any) -> float:
    """Epsilon of the first parameter group with a second moment; 0 where there is none."""
    value = adaptive_group(optimizer).get("eps", 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


@dataclass(frozen=True, kw_only=True)
class GradientSignal(Signal):
    """Gradient norm before clipping, of the whole and of each module group.

    Also each group's share of the total (of squares; they sum to 1), each group's root mean
    square against Adam's epsilon (near 1 and below, updates fade out), the number of gradient
    tensors that hold a NaN or an Inf, and the share of the norm that clipping removed,
    `1 - min(1, clip / norm)`. All of it comes from the per-parameter norms that the clip
    needs anyway; a non-finite entry makes its tensor's norm non-finite, so that none can
    hide. Of sharded parameters it is the norm over all ranks.

    Args:
        per_parameter: also record the norm of every parameter.

    Reference: Wortsman et al. 2023, section 3.4 (epsilon); GLM-130B, section 3.3 (the
    embedding's share).
    """

    name: ClassVar[str] = "gradients"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "none beyond the clip's"
    level: ClassVar[Level] = Level.MINIMAL
    per_parameter: bool = False

    def attach(self, site: Site) -> Attached:
        return _AttachedGradients(site, self)
