"""How large the parameters are."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from foreshock.core.names import PARAM_NORM, series_name
from foreshock.core.signal import Attached, Exactness, Moment, Phase, Signal, Site
from foreshock.norms import l2_norms


class _AttachedParamNorm(Attached):
    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._parameters = parameters
        self.series = (series_name(PARAM_NORM.name),)

    def measure(self, moment: Moment) -> torch.Tensor:
        with torch.no_grad():
            norms = l2_norms(self._parameters, self._parameters[0].device)
            return torch.linalg.vector_norm(norms).reshape(1)


@dataclass(frozen=True, kw_only=True)
class ParamNormSignal(Signal):
    """L2 norm of all trained parameters after the update; non-finite if any weight is."""

    name: ClassVar[str] = "param_norm"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.UPDATE
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "one over the parameters"

    def attach(self, site: Site) -> Attached:
        return _AttachedParamNorm([parameter for _, parameter in site.parameters])
