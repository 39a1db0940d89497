"""How far an update moves the weights, against their size."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from foreshock.core.groups import total_norm
from foreshock.core.names import LOST_UPDATE_SHARE, UPDATE_NORM, UPDATE_RATIO, series_name
from foreshock.core.signal import (
    MISSING,
    Attached,
    Exactness,
    Moment,
    Phase,
    Signal,
    Site,
    Values,
)
from foreshock.ranks.shares import Shares
from foreshock.sampling import Sampling

_LOW = (torch.bfloat16, torch.float16)


class _AttachedUpdateRatio(Attached):
    def __init__(self, site: Site) -> None:
        self._sampling = Sampling.of(site)
        self._groups = site.group_table()
        series = self._groups.whole_and_each(UPDATE_RATIO.name)
        series += self._groups.whole_and_each(UPDATE_NORM.name)
        self._num = len(site.parameters)
        norms = site.norm_reductions()
        self._shares = Shares(site, self._sampling.device)
        self.reductions = norms + norms
        self._low = [parameter.dtype in _LOW for _, parameter in site.parameters]
        if any(self._low):
            series.append(series_name(LOST_UPDATE_SHARE.name))
            self._is_low = torch.tensor(self._low, device=self._sampling.device)
            kind = self._shares.counts_add_up
            self.reductions = [*self.reductions, kind, kind]
        self.series = tuple(series)

    def prepare(self, moment: Moment) -> None:
        self._sampling.weights_before(moment)
        if any(self._low):
            self._sampling.gradients(moment)

    def measure(self, moment: Moment) -> "torch.Tensor | Values":
        sampling = self._sampling
        seen = None if any(self._low) else sampling.visit(moment)
        if seen is not None:
            found = np.sqrt(np.concatenate([seen.moved, seen.size]))
            if not self._shares.are_sharded:
                return found
            return self._shares.of_norms(torch.from_numpy(found).reshape(2, -1)).reshape(-1)
        before, now = sampling.weights_before(moment), sampling.weights_after(moment)
        moved = torch.sub(now, before, out=sampling.scratch())
        norms = torch.stack([sampling.norms(moved), sampling.norms(now)])
        parts = [self._shares.of_norms(norms).reshape(-1)]
        if any(self._low):
            asked = sampling.gradients(moment) != 0
            lost = (asked & (moved == 0)).sum(dim=1)
            both = torch.stack([sampling.sums(lost), sampling.sums(asked.sum(dim=1))])
            both = self._shares.of_counts(both * sampling.scale)
            parts.append((both * self._is_low).sum(dim=1))
        return torch.cat(parts)

    def forget(self) -> None:
        self._sampling.forget()

    def finish(self, partials: Values, committed: bool) -> Values:
        moved, size = partials[: self._num], partials[self._num : 2 * self._num]
        groups, sizes = self._groups.norms(moved), self._groups.norms(size)
        whole, whole_size = total_norm(moved), total_norm(size)
        found = [
            [whole / max(whole_size, 1e-30)],
            groups / np.maximum(sizes, 1e-30),
            [whole],
            groups,
        ]
        if any(self._low):
            lost, asked = partials[2 * self._num :]
            found.append([lost / max(asked, 1.0) if committed else MISSING])
        return np.concatenate(found)


@dataclass(frozen=True, kw_only=True)
class UpdateRatioSignal(Signal):
    """Norm of the update and its ratio to the norm of the weights, whole and by module group.

    `||w_after - w_before|| / ||w_after||`, weight decay included, from the shared sample of
    each tensor. Tensors of up to 4,096 elements are measured in full. 0 in a step whose
    update was skipped. Where weights are bf16 or fp16, also the share of weights with a
    gradient that did not move: what rounding lost; a skipped step has no such value.

    Measured on transformers of widths 96 to 512, 95 % of values err by less than:

    | of | Adam | SGD, RMSprop |
    | --- | --- | --- |
    | one matrix of a block | 4 % | 8 % |
    | embedding or head, 256 tokens | 5 % | 18 % |
    | embedding or head, 4,096 tokens | 11 % | 65 % |
    | the whole model | 1.5 % | 8 %, or 35 % with 4,096 tokens |

    The more unequal the rows of a matrix are, the less its sample says.
    """

    name: ClassVar[str] = "update_ratio"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.UPDATE
    exactness: ClassVar[Exactness] = Exactness.SAMPLED
    passes: ClassVar[str] = "two over a sample of the parameters; one if fused, with the moments'"

    def attach(self, site: Site) -> Attached:
        return _AttachedUpdateRatio(site)
