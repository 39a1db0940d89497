"""How far an update moves the weights, against their size."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from foreshock.core.errors import ConfigError
from foreshock.core.names import UPDATE_RATIO, module_group, series_name
from foreshock.core.signal import Attached, Exactness, Moment, Phase, Signal, Site
from foreshock.norms import l2_norms


def coprime_stride(numel: int, samples: int) -> int:
    """A stride that visits about `samples` of `numel` elements and every row and column.

    Coprime to `numel`, hence to each dimension: contiguous blocks would see a few rows
    only and err by up to 40 %.

    >>> coprime_stride(1000, 2000), coprime_stride(4096, 1000)
    (1, 5)
    """
    stride = max(1, numel // samples)
    while math.gcd(stride, numel) != 1:
        stride += 1
    return stride


class _AttachedUpdateRatio(Attached):
    def __init__(self, site: Site, samples: int) -> None:
        groups = [module_group(path) for path, _ in site.parameters]
        names = list(dict.fromkeys(groups))
        self._parameters = [parameter for _, parameter in site.parameters]
        self._strides = [coprime_stride(p.numel(), samples) for p in self._parameters]
        self._before = [torch.empty_like(self._sample(i)) for i in range(len(groups))]
        device = self._parameters[0].device
        self._places = torch.tensor([names.index(group) for group in groups], device=device)
        pairs = zip(self._parameters, self._before, strict=True)
        scale = [whole.numel() / max(len(part), 1) for whole, part in pairs]
        self._scale = torch.tensor(scale, dtype=torch.float64, device=device)
        self._num_groups = len(names)
        self.series = (
            series_name(UPDATE_RATIO.name),
            *(series_name(UPDATE_RATIO.name, group) for group in names),
        )

    def _sample(self, place: int) -> torch.Tensor:
        return self._parameters[place].detach().reshape(-1)[:: self._strides[place]]

    def prepare(self, moment: Moment) -> None:
        torch._foreach_copy_(self._before, [self._sample(i) for i in range(len(self._before))])

    def measure(self, moment: Moment) -> torch.Tensor:
        now = [self._sample(i) for i in range(len(self._before))]
        moved = self._squares(torch._foreach_sub(now, self._before))
        size = self._squares(now)
        both = torch.zeros(2, self._num_groups, dtype=torch.float64, device=moved.device)
        both.index_add_(1, self._places, torch.stack([moved, size]))
        whole = torch.stack([moved.sum(), size.sum()]).reshape(2, 1)
        both = torch.cat([whole, both], dim=1).sqrt()
        return both[0] / both[1].clamp(min=1e-30)

    def _squares(self, tensors: "list[torch.Tensor] | tuple[torch.Tensor, ...]") -> torch.Tensor:
        return l2_norms(tensors, self._scale.device).square() * self._scale


@dataclass(frozen=True, kw_only=True)
class UpdateRatioSignal(Signal):
    """Norm of the update over norm of the weights, of the whole and of each module group.

    `||w_after - w_before|| / ||w_after||`, weight decay included, from a strided sample
    of each tensor taken just before the update. Tensors of up to `samples` elements are
    measured in full. 0 in a step whose update was skipped.

    Args:
        samples: elements sampled of each tensor. Of one tensor the relative standard error
            is `samples**-0.5` (1.6 % at 4,096) where entries are alike; of a whole model the
            median error is 0.3 to 0.5 % and the 95th percentile 1.8 %. More costs memory and
            time.

    Reference: COST of the project's sources for the error of the sample.
    """

    name: ClassVar[str] = "update_ratio"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.UPDATE
    exactness: ClassVar[Exactness] = Exactness.SAMPLED
    passes: ClassVar[str] = "two over a sample of the parameters"
    samples: int = 4096

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigError(f"UpdateRatioSignal.samples is {self.samples}; it must be at least 1")

    def attach(self, site: Site) -> Attached:
        return _AttachedUpdateRatio(site, self.samples)
