"""How large the activations are that reach the last norm layer."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from foreshock.core.names import ACTIVATION_NORM, GLOBAL, series_name
from foreshock.core.signal import Attached, Exactness, Moment, Phase, Signal, Site
from foreshock.norms import l2_norms


def last_norm_layer(model: torch.nn.Module) -> tuple[str, torch.nn.Module] | None:
    """Find the last norm layer: the last outside the numbered blocks, else the last at all."""
    norms = [
        (path, module)
        for path, module in model.named_modules()
        if "norm" in type(module).__name__.lower() and not list(module.children())
        if "parametrizations" not in path.split(".")  # weight norm sees weights
    ]
    outside = [found for found in norms if not any(part.isdigit() for part in found[0].split("."))]
    return (outside or norms or [None])[-1]


class _AttachedActivation(Attached):
    def __init__(self, path: str, module: torch.nn.Module, device: torch.device) -> None:
        self.series = (series_name(ACTIVATION_NORM.name, path or GLOBAL),)
        self._squares = torch.zeros((), dtype=torch.float64, device=device)
        self._num_forwards = 0
        self._hook = module.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: torch.nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = [*inputs, *named.values()]
        if module.training and torch.is_grad_enabled() and given and given[0].numel():
            value = given[0].detach()
            size = l2_norms([value], self._squares.device)[0]
            self._squares = self._squares + size.square() / value.numel()
            self._num_forwards += 1

    def measure(self, moment: Moment) -> torch.Tensor:
        value = (self._squares / max(self._num_forwards, 1)).sqrt().reshape(1)
        self._squares = torch.zeros_like(self._squares)
        self._num_forwards = 0
        return value

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Between steps it has none; half a step that was dropped must not enter the next one.
        self._squares = torch.zeros_like(self._squares)
        self._num_forwards = 0

    def detach(self) -> None:
        self._hook.remove()


@dataclass(frozen=True, kw_only=True)
class ActivationNormSignal(Signal):
    """Root mean square of what enters the last norm layer, over all tokens and channels.

    What *enters*: after the layer the size is normalised away. Mean of squares over the
    step's micro-steps; evaluation passes do not count. Models without a norm layer have
    no such signal.

    Reference: OPT-175B log book (the last layer's activation norm rises before the loss
    scale falls).
    """

    name: ClassVar[str] = "activation_norm"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "one over the last layer's input"

    def attach(self, site: Site) -> Attached | None:
        found = last_norm_layer(site.model)
        if found is None:
            return None
        return _AttachedActivation(*found, site.parameters[0][1].device)
