"""The optimizer's moments: how large they are, and whether the second one is stale."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from foreshock.core.names import (
    FIRST_MOMENT_NORM,
    NUM_NONFINITE_MOMENTS,
    NUM_UPDATES,
    RMS_T,
    SECOND_MOMENT_RMS,
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
from foreshock.ranks.shares import Shares
from foreshock.sampling import Sampling

_FIRST = ("exp_avg", "momentum_buffer")
_SECOND = ("exp_avg_sq", "square_avg", "sum")


class _AttachedMoments(Attached):
    def __init__(self, site: Site) -> None:
        self._optimizer = site.optimizer
        self._parameters = [parameter for _, parameter in site.parameters]
        self._sampling = Sampling.of(site)
        self._groups = site.group_table()
        self._num = len(site.parameters)
        adaptive = _group_of(site.optimizer).get("betas") is not None
        self._has_second = adaptive or "alpha" in _group_of(site.optimizer)
        kinds = [FIRST_MOMENT_NORM]
        if self._has_second:
            kinds += [SECOND_MOMENT_RMS, RMS_T]
        self.series = (
            *(name for kind in kinds for name in self._groups.whole_and_each(kind.name)),
            series_name(NUM_NONFINITE_MOMENTS.name),
            series_name(NUM_UPDATES.name),
        )
        reductions = site.norm_reductions() * (3 if self._has_second else 1)
        self._shares = Shares(site, self._sampling.device)
        self.reductions = (*reductions, Reduction.SAME, Reduction.SAME)

    def prepare(self, moment: Moment) -> None:
        if self._has_second:
            self._sampling.gradients(moment)

    def measure(self, moment: Moment) -> torch.Tensor:
        sampling = self._sampling
        nothing = torch.zeros(self._num, dtype=torch.float64, device=sampling.device)
        first = sampling.state(moment, _FIRST)
        found = [nothing if first is None else sampling.norms(first)]
        if self._has_second:
            second = sampling.state(moment, _SECOND)
            if second is None:
                found += [nothing, nothing]
            else:
                found += [sampling.totals(second).sqrt(), self._stale(moment, second)]
        broken = ~torch.isfinite(torch.stack(found[:2])).all(dim=0)
        found = [self._shares.of_norms(one) for one in found]
        count = broken.sum().to(torch.float64).reshape(1)
        return torch.cat([*found, count, self._num_updates().reshape(1).to(count)])

    def _stale(self, moment: Moment, second: torch.Tensor) -> torch.Tensor:
        """Root of the sum of `g^2 / v` of each parameter, v corrected for its bias, `[P]`."""
        sampling = self._sampling
        group = _group_of(self._optimizer)
        betas = group.get("betas")
        correction = torch.ones((), dtype=torch.float64, device=second.device)
        if betas is not None:
            updates = self._num_updates().to(correction).clamp(min=1)
            correction = 1 - float(betas[1]) ** updates
        grads = sampling.gradients(moment)
        used = sampling.factors(moment)[1]
        factor = torch.as_tensor(used, dtype=torch.float64, device=second.device)
        # g^2 / max(v, eps^2), v corrected; the padding is 0 / eps^2.
        least = (correction * max(float(group.get("eps", 0.0)) ** 2, 1e-36)).to(second)
        ratio = torch.mul(grads, grads, out=sampling.scratch())
        ratio.div_(torch.maximum(second, least, out=sampling.scratch(1)))
        return (sampling.totals(ratio) * correction).sqrt() * factor

    def _num_updates(self) -> torch.Tensor:
        """Updates that the optimizer has counted for its first parameter, `[]`."""
        for parameter in self._parameters:
            count = self._optimizer.state.get(parameter, {}).get("step")
            if count is not None:
                return torch.as_tensor(count, device=self._sampling.device)
        return torch.zeros((), device=self._sampling.device)

    def finish(self, partials: Values, committed: bool) -> Values:
        num = self._num
        per_kind = partials[:-2].reshape(-1, num)
        found: list[Any] = []
        for place, norms in enumerate(per_kind):
            squares = self._groups.sums(norms**2)
            whole = float(np.sum(norms**2))
            if place == 0:
                found += [[np.sqrt(whole)], np.sqrt(squares)]
            else:  # root mean squares
                sizes = self._groups.sizes
                every = max(float(sizes.sum()), 1.0)
                found += [[np.sqrt(whole / every)], np.sqrt(squares / np.maximum(sizes, 1))]
        if self._shares.are_sharded:  # broken on any rank, which only the joined norms tell
            partials[-2] = np.sum(~np.isfinite(per_kind[:2]).all(axis=0))
        return np.concatenate([*found, partials[-2:]])


def _group_of(optimizer: Any) -> dict[str, Any]:
    """The first parameter group: settings of others are taken to be the same."""
    groups = getattr(optimizer, "param_groups", None)
    return groups[0] if groups else {}


@dataclass(frozen=True, kw_only=True)
class MomentsSignal(Signal):
    """Norm of the first moment, root mean of the second, and RMS_t, whole and by module group.

    `RMS_t = sqrt(mean(g^2 / max(v, eps^2)))` with the bias-corrected v after the update, and the
    clipped g: above 1, the second moment lags behind the gradients, and spikes follow one to
    eight steps later. Also the number of parameters whose sampled moments hold a NaN or an
    Inf, and the optimizer's own count of updates.

    From the shared sample; tensors of up to 4,096 elements are measured in full. An RMS_t below
    1e-10 may be 0. Measured on transformers of widths 96 to 512, 95 % of values err by less than:

    | of | RMS_t | first moment | second moment |
    | --- | --- | --- | --- |
    | one matrix of a block | 4 % (RMSprop 8 %) | 8 % | 4 % |
    | embedding or head, 256 tokens | 8 % (RMSprop 19 %) | 19 % | 17 % (RMSprop 35 %) |
    | embedding or head, 4,096 tokens | 36 % | 95 % | 65 % |
    | the whole model | 2 %, or 10 % with 4,096 tokens | 16 %, 78 % | 16 %, 43 % |

    The more unequal the rows of a matrix are, the less its sample says: of a large vocabulary,
    only a change by a factor. The places of the sample stay, so that most of the error stays too.
    Optimizers without a second moment have the first series only.

    Reference: Wortsman et al. 2023 (StableAdamW), section 3.4.
    """

    name: ClassVar[str] = "moments"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.UPDATE
    exactness: ClassVar[Exactness] = Exactness.SAMPLED
    passes: ClassVar[str] = "three over a sample of the parameters"

    def attach(self, site: Site) -> Attached | None:
        group = _group_of(site.optimizer)
        if not {"betas", "alpha", "momentum"} & group.keys():
            return None
        return _AttachedMoments(site)
