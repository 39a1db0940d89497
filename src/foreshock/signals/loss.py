"""The loss, its smoothed form, and its terms."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from foreshock.core.errors import ConfigError
from foreshock.core.names import LOSS, LOSS_SMOOTHED, series_name
from foreshock.core.signal import Attached, Exactness, Moment, Phase, Signal, Site


class _AttachedLoss(Attached):
    def __init__(self, decay: float, device: torch.device, terms: tuple[str, ...]) -> None:
        self._decay = decay
        self._terms = terms
        self._average = torch.zeros((), dtype=torch.float64, device=device)
        self._weight = torch.zeros((), dtype=torch.float64, device=device)
        names = [series_name(LOSS.name), series_name(LOSS_SMOOTHED.name)]
        self.series = (*names, *(series_name(LOSS.name, term) for term in terms))

    def measure(self, moment: Moment) -> torch.Tensor:
        device = self._average.device
        loss = moment.loss.to(device, torch.float64)
        finite = torch.isfinite(loss)
        kept = self._decay * self._average + (1 - self._decay) * loss
        self._average = torch.where(finite, kept, self._average)
        weight = self._decay * self._weight + (1 - self._decay)
        self._weight = torch.where(finite, weight, self._weight)
        smoothed = self._average / self._weight  # NaN until there is a finite loss
        terms = [moment.terms[term].to(device, torch.float64).reshape(()) for term in self._terms]
        return torch.stack([loss, smoothed, *terms])

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average.clone(), "weight": self._weight.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average = state["average"].to(self._average.device)
        self._weight = state["weight"].to(self._weight.device)


@dataclass(frozen=True, kw_only=True)
class LossSignal(Signal):
    """The step's mean loss, its exponential average (bias-corrected), and each term.

    A non-finite loss is recorded as it is and left out of the average, which is NaN until
    there is a finite one.

    Args:
        decay: weight of the past in the average; 0.98 remembers about 50 steps.

    Reference: Kingma and Ba 2015, section 3, for the bias correction.
    """

    name: ClassVar[str] = "loss"
    unit: ClassVar[str] = "nats"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "none"
    decay: float = 0.98

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ConfigError(f"LossSignal.decay is {self.decay}; it must be in [0, 1)")

    def attach(self, site: Site) -> Attached:
        return _AttachedLoss(self.decay, site.parameters[0][1].device, site.terms)
