"""What a loop tells of the step in progress: its loss, terms of it, the loss of each sample."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foreshock.core.errors import ConfigError, LoopError
from foreshock.core.signal import Moment


class Told:
    """Gathers the micro-steps of a step.

    Args:
        terms: names of the loss terms that every micro-step must give.
        per_sample: whether the loss of each sample is kept.
        device: where the values are wanted.
    """

    def __init__(self, terms: Sequence[str], per_sample: bool, device: torch.device) -> None:
        self._names, self._per_sample, self._device = tuple(terms), per_sample, device
        self.forget()

    @property
    def has_loss(self) -> bool:
        """Whether a loss was told since the last step."""
        return bool(self._losses)

    def add(self, loss: Any, samples: Any, terms: Mapping[str, Any], step: int) -> None:
        """Take in one micro-step.

        Raises:
            ConfigError: its terms are not those that were announced.
            LoopError: the loss or a term is not a single number.
        """
        if set(terms) != set(self._names):
            raise ConfigError(
                f"loss terms {sorted(terms)} were given, but watch was called with "
                f"terms={sorted(self._names)}"
            )
        told = {name: _number(name, value, step) for name, value in {"": loss, **terms}.items()}
        self._losses.append(told.pop(""))
        for name, term in told.items():
            self._terms.setdefault(name, []).append(term)
        if samples is not None and self._per_sample:
            self._samples.append(torch.as_tensor(samples).detach().reshape(-1))

    def fill(self, moment: Moment) -> None:
        """Put the means of what was told into the moment."""
        moment.loss = self._mean(self._losses)
        moment.terms = {name: self._mean(self._terms.get(name, [])) for name in self._names}
        moment.samples_loss = torch.cat(self._samples) if self._samples else None

    def forget(self) -> None:
        """Begin a step."""
        self._losses: list[torch.Tensor] = []
        self._terms: dict[str, list[torch.Tensor]] = {}
        self._samples: list[torch.Tensor] = []

    def _mean(self, values: list[torch.Tensor]) -> torch.Tensor:
        if not values:
            return torch.zeros((), device=self._device)
        if len(values) == 1:
            return values[0].to(self._device, torch.float32)
        return torch.stack([value.to(self._device, torch.float32) for value in values]).mean()


def _number(name: str, value: Any, step: int) -> torch.Tensor:
    found = torch.as_tensor(value).detach()
    if found.numel() != 1:
        what = f"loss term {name!r}" if name else "loss"
        raise LoopError(
            f"step {step}: the {what} must be a single number, got a tensor of "
            f"shape {tuple(found.shape)}; tell its mean"
        )
    return found.reshape(())
