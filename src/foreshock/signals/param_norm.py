"""How large the parameters are, and how much they have grown."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from foreshock.core.groups import total_norm
from foreshock.core.names import PARAM_GROWTH, PARAM_NORM
from foreshock.core.signal import Attached, Exactness, Moment, Phase, Signal, Site, Values
from foreshock.norms import l2_norms
from foreshock.ranks.shares import Shares


class _AttachedParamNorm(Attached):
    def __init__(self, site: Site) -> None:
        self._parameters = [parameter for _, parameter in site.parameters]
        self._device = self._parameters[0].device
        self._groups = site.group_table()
        self.reductions = site.norm_reductions()
        self._shares = Shares(site, self._device)
        self._first: Values | None = None
        self.series = (
            *self._groups.whole_and_each(PARAM_NORM.name),
            *self._groups.each(PARAM_GROWTH.name),
        )

    def measure(self, moment: Moment) -> torch.Tensor:
        return self._shares.of_norms(l2_norms(self._parameters, self._device))

    def finish(self, partials: Values, committed: bool) -> Values:
        groups = self._groups.norms(partials)
        if self._first is None and np.isfinite(groups).all():
            self._first = groups
        first = groups if self._first is None else self._first
        growth = np.where(first != 0, groups / first, 1.0)
        return np.concatenate([[total_norm(partials)], groups, growth])

    def state_dict(self) -> dict[str, Any]:
        return {} if self._first is None else {"first": self._first.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        first = state.get("first")
        self._first = None if first is None else np.array(first, dtype=np.float64)
        if self._first is not None and len(self._first) != len(self._groups.names):
            raise ValueError("the parameter groups are not those of this model")


@dataclass(frozen=True, kw_only=True)
class ParamNormSignal(Signal):
    """L2 norm of the trained parameters after the update, whole and by module group.

    Also each group's growth: its norm over that at the first measurement of the run in which
    all were finite; 1 for a group that was all zeros then. Non-finite if any weight is. Weights
    move slowly, so every tenth step is enough (and the step of every snapshot at its default
    cadence): a tenth of a pass a step.
    """

    name: ClassVar[str] = "param_norm"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.UPDATE
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "one over the parameters when due"
    interval_steps: int = 10

    def attach(self, site: Site) -> Attached:
        return _AttachedParamNorm(site)
