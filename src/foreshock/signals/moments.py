"""The optimizer's moments: how large they are, and whether the second one is stale."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from foreshock.core.adaptive import adaptive_group, is_adaptive
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
        self._sampling = Sampling.of(site)
        self._groups = site.group_table()
        self._num = len(site.parameters)
        self._has_second = is_adaptive(adaptive_group(site.optimizer))
        scaled = {
            id(parameter)
            for group in site.optimizer.param_groups
            if is_adaptive(group)
            for parameter in group["params"]
        }
        of_each = [id(parameter) in scaled for _, parameter in site.parameters]
        self._scaled = np.array(of_each, dtype=np.float64)
        self._all_scaled = all(of_each)
        self._sizes = self._groups.sums(self._scaled * np.array(site.num_elements()))
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
        self._sampling.count_moments(_FIRST, _SECOND, lambda: float(self._least()))

    def prepare(self, moment: Moment) -> None:
        if self._has_second:
            self._sampling.gradients(moment)

    def measure(self, moment: Moment) -> "torch.Tensor | Values":
        visited = self._visited(moment)
        if visited is not None and not self._shares.are_sharded:
            count = np.sum(~np.isfinite(visited[:2]).all(axis=0))
            return np.concatenate(
                [visited.reshape(-1), [count, float(self._sampling.num_updates())]]
            )
        found = self._in_passes(moment) if visited is None else torch.from_numpy(visited)
        broken = ~torch.isfinite(found[:2]).all(dim=0)
        count = broken.sum().to(torch.float64).reshape(1)
        updates = torch.as_tensor(self._sampling.num_updates(), device=found.device)
        return torch.cat([self._shares.of_norms(found).reshape(-1), count, updates.reshape(1)])

    def _visited(self, moment: Moment) -> Values | None:
        """The three norms of each parameter, `[3, P]`, where one visit tells them all."""
        seen = self._sampling.visit(moment)
        if seen is None:
            return None
        if not self._has_second:
            return np.sqrt(seen.first)[None]
        with np.errstate(all="ignore"):
            stale = seen.stale * float(self._correction() * self._factor(moment) ** 2)
            if not self._all_scaled:
                stale = np.where(self._scaled > 0, stale, 0.0)
            return np.sqrt(np.stack([seen.first, seen.second, stale]))

    def _in_passes(self, moment: Moment) -> torch.Tensor:
        """The same, one quantity after another."""
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
        return torch.stack(found)

    def _stale(self, moment: Moment, second: torch.Tensor) -> torch.Tensor:
        """Root of the sum of `g^2 / v` of each parameter, v corrected for its bias, `[P]`."""
        sampling = self._sampling
        grads = sampling.gradients(moment)
        # The padding is 0 / eps^2.
        ratio = torch.mul(grads, grads, out=sampling.scratch())
        least = torch.as_tensor(self._least(), dtype=torch.float64).to(second)
        ratio.div_(torch.maximum(second, least, out=sampling.scratch(1)))
        totals = sampling.totals(ratio)
        if not self._all_scaled:
            totals = totals.where(torch.from_numpy(self._scaled > 0).to(totals.device), 0.0)
        return (totals * self._correction()).sqrt() * self._factor(moment)

    def _least(self) -> Any:
        """The smallest v that counts as itself, `[]`: eps^2, as v is before its correction."""
        eps = float(adaptive_group(self._optimizer).get("eps", 0.0))
        return self._correction() * max(eps**2, 1e-36)

    def _correction(self) -> Any:
        """What v is divided by to be corrected for its bias: `[]` in fp64, or a number."""
        betas = adaptive_group(self._optimizer).get("betas")
        if betas is None:
            return 1.0
        updates = self._sampling.num_updates()
        if isinstance(updates, torch.Tensor):
            if not updates.is_cpu:
                return 1 - float(betas[1]) ** updates.to(torch.float64).clamp(min=1)
            updates = float(updates)
        return 1 - float(betas[1]) ** max(updates, 1)

    def _factor(self, moment: Moment) -> torch.Tensor:
        """What the sampled gradients are multiplied by to be those that are used, `[]`."""
        used = self._sampling.factors(moment)[1]
        return torch.as_tensor(used, dtype=torch.float64, device=self._sampling.device)

    def finish(self, partials: Values, committed: bool) -> Values:
        num = self._num
        per_kind = partials[:-2].reshape(-1, num)
        found: list[Any] = []
        for place, norms in enumerate(per_kind):
            squares = self._groups.sums(norms**2)
            whole = float(np.sum(norms**2))
            if place == 0:
                found += [[np.sqrt(whole)], np.sqrt(squares)]
            else:  # root mean squares, over what has a second moment
                sizes = self._groups.sizes if self._all_scaled else self._sizes
                every = max(float(sizes.sum()), 1.0)
                found += [[np.sqrt(whole / every)], np.sqrt(squares / np.maximum(sizes, 1))]
        if self._shares.are_sharded:  # broken on any rank, which only the joined norms tell
            partials[-2] = np.sum(~np.isfinite(per_kind[:2]).all(axis=0))
        return np.concatenate([*found, partials[-2:]])


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
    Optimizers without a second moment have the first series only. Where some parameters have one
    and others do not (AdamW beside Muon), the second moment and RMS_t are of those that have.

    Reference: Wortsman et al. 2023 (StableAdamW), section 3.4.
    """

    name: ClassVar[str] = "moments"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.UPDATE
    exactness: ClassVar[Exactness] = Exactness.SAMPLED
    passes: ClassVar[str] = "three over a sample of the parameters; one if fused, with the update's"

    def attach(self, site: Site) -> Attached | None:
        group = adaptive_group(site.optimizer)
        if not {"betas", "alpha", "momentum"} & group.keys():
            return None
        return _AttachedMoments(site)
