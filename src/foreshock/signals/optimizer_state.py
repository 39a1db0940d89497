"""The optimizer's moments in full: their norms, and whether every entry is finite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from foreshock.core.groups import total_norm
from foreshock.core.names import (
    FIRST_MOMENT_NORM_EXACT,
    NUM_NONFINITE_MOMENTS_EXACT,
    SECOND_MOMENT_NORM,
    series_name,
)
from foreshock.core.signal import (
    Attached,
    Exactness,
    Level,
    Moment,
    Phase,
    Signal,
    Site,
    Values,
)
from foreshock.norms import l2_norms
from foreshock.ranks.shares import Shares

_KEYS = (("exp_avg", "momentum_buffer"), ("exp_avg_sq", "square_avg", "sum"))


class _AttachedState(Attached):
    def __init__(self, site: Site) -> None:
        self._state = site.optimizer.state
        self._parameters = [parameter for _, parameter in site.parameters]
        self._device = self._parameters[0].device
        self._groups = site.group_table()
        self._shares = Shares(site, self._device)
        self.reductions = site.norm_reductions() * 2
        self.series = (
            *self._groups.whole_and_each(FIRST_MOMENT_NORM_EXACT.name),
            *self._groups.whole_and_each(SECOND_MOMENT_NORM.name),
            series_name(NUM_NONFINITE_MOMENTS_EXACT.name),
        )

    def measure(self, moment: Moment) -> torch.Tensor:
        return torch.cat([self._shares.of_norms(self._norms(keys)) for keys in _KEYS])

    def _norms(self, keys: Sequence[str]) -> torch.Tensor:
        """Norm of the first of these states that each parameter has, `[P]`; 0 without."""
        found: dict[int, Any] = {}
        for place, parameter in enumerate(self._parameters):
            state = self._state.get(parameter, {})
            held = next(
                (state[key] for key in keys if isinstance(state.get(key), torch.Tensor)), None
            )
            if held is not None and held.shape == parameter.shape:
                found[place] = held
        norms = torch.zeros(len(self._parameters), dtype=torch.float64, device=self._device)
        if found:
            norms[list(found)] = l2_norms(list(found.values()), self._device)
        return norms

    def finish(self, partials: Values, committed: bool) -> Values:
        first, second = partials.reshape(2, -1)
        broken = float(np.sum(~np.isfinite(first) | ~np.isfinite(second)))
        return np.concatenate(
            [
                [total_norm(first)],
                self._groups.norms(first),
                [total_norm(second)],
                self._groups.norms(second),
                [broken],
            ]
        )


@dataclass(frozen=True, kw_only=True)
class OptimizerStateSignal(Signal):
    """L2 norm of the first and second moments, whole and by module group, and what is broken.

    Every entry is looked at: a parameter whose moments hold a NaN or an Inf anywhere is
    counted. What `moments` samples every step, this reads in full now and then.
    """

    name: ClassVar[str] = "optimizer_state"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.UPDATE
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "two over the parameters when due"
    level: ClassVar[Level] = Level.FULL
    interval_steps: int = 100

    def attach(self, site: Site) -> Attached | None:
        groups = getattr(site.optimizer, "param_groups", None) or ()
        if not any({"betas", "alpha", "momentum"} & group.keys() for group in groups):
            return None
        return _AttachedState(site)
