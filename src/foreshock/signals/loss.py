"""The loss, its smoothed form, its terms, and its spread over samples."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from foreshock.core.errors import ConfigError
from foreshock.core.names import (
    LOSS,
    LOSS_LARGEST_SAMPLE,
    LOSS_SAMPLE_STD,
    LOSS_SMOOTHED,
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


class _AttachedLoss(Attached):
    def __init__(self, decay: float, site: Site) -> None:
        self._decay = decay
        self._terms = site.terms
        self._per_sample = site.per_sample
        self._device = site.parameters[0][1].device
        self._average = 0.0
        self._weight = 0.0
        names = [series_name(LOSS.name), series_name(LOSS_SMOOTHED.name)]
        names += [series_name(LOSS.name, term) for term in site.terms]
        kinds = [Reduction.MEAN] * (1 + len(site.terms))
        if site.per_sample:
            names += [series_name(LOSS_LARGEST_SAMPLE.name), series_name(LOSS_SAMPLE_STD.name)]
            kinds += [Reduction.MAX, Reduction.MEAN, Reduction.EACH]
        self.series = tuple(names)
        self.reductions = tuple(kinds)

    def measure(self, moment: Moment) -> torch.Tensor:
        terms = [moment.terms[term] for term in self._terms]
        found = [moment.loss, *terms]
        if self._per_sample:
            samples = moment.samples_loss
            if samples is None:
                found += [torch.tensor(torch.nan)] * 3
            else:
                values = samples.to(torch.float64).reshape(-1)
                mean = values.mean()
                found += [values.max(), (values - mean).square().mean(), mean]
        return torch.stack([one.to(self._device, torch.float32).reshape(()) for one in found])

    def finish(self, partials: Values, committed: bool) -> Values:
        loss = float(partials[0])
        if math.isfinite(loss):
            self._average = self._decay * self._average + (1 - self._decay) * loss
            self._weight = self._decay * self._weight + (1 - self._decay)
        smoothed = self._average / self._weight if self._weight else math.nan
        num = 1 + len(self._terms)
        found = [loss, smoothed, *partials[1:num]]
        if self._per_sample:
            largest, within, *means = partials[num:]
            found += [largest, np.sqrt(within + np.var(means))]
        return np.array(found)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self._average, "weight": self._weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average = float(state["average"])
        self._weight = float(state["weight"])


@dataclass(frozen=True, kw_only=True)
class LossSignal(Signal):
    """The step's mean loss, its exponential average (bias-corrected), and each term.

    A non-finite loss is recorded as it is and left out of the average, which is NaN until
    there is a finite one. Over ranks it is the mean. Where the program gives the loss of
    each sample, also the largest and their standard deviation, where ranks count the same.

    Args:
        decay: weight of the past in the average; 0.98 remembers about 50 steps.

    Reference: Kingma and Ba 2015, section 3, for the bias correction.
    """

    name: ClassVar[str] = "loss"
    unit: ClassVar[str] = "nats"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "none"
    level: ClassVar[Level] = Level.MINIMAL
    decay: float = 0.98

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay < 1:
            raise ConfigError(f"LossSignal.decay is {self.decay}; it must be in [0, 1)")

    def attach(self, site: Site) -> Attached:
        return _AttachedLoss(self.decay, site)
