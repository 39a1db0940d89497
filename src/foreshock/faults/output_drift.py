"""An output layer that drifts: log Z moves away from zero, and the logits with it."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from foreshock.anatomy import anatomy_of
from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class OutputDrift(ProgramFault):
    """Move all output logits together, and stretch the head, a little with every update.

    Each update is followed by two more changes of the head's weight W `[V, D]`, of which cross-
    entropy feels the second only: a step of the length `rate * intensity` along the mean hidden
    state, the same for every row, so that log Z falls by about as much as that state is long;
    and a growth of W by the share `rate * intensity / 10`.

    Args:
        intensity: 0 to 1.
        rate: length of a step at 1, above 0.

    Raises:
        ConfigError: an argument is out of its range; at the change, the model has no head that
            is an `nn.Linear`.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: 0, +0.04 and +0.11
    after 75 steps, with log Z at -19, -50 and -106 instead of 6. Norm and updates of the head
    grow from the first step on, and alarm from 0.65 on.

    Reference: output logits that drift away from log-probabilities, Chowdhery et al. (2022),
    "PaLM", section 5, https://arxiv.org/abs/2204.02311, and Wortsman et al. (2023), section 3.1.2,
    https://arxiv.org/abs/2309.14322. The drift by itself is our choice.
    """

    name: ClassVar[str] = "output_drift"
    cause: ClassVar[str] = "output_logit_drift"

    intensity: float = 1.0
    rate: float = 0.2

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if not self.rate > 0:
            raise ConfigError(f"OutputDrift.rate is {self.rate}; it must be above 0.")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        path = anatomy_of(program.model).head
        head = None if path is None else program.model.get_submodule(path)
        if not isinstance(head, nn.Linear):
            raise ConfigError(f"OutputDrift: the head is {path!r}; it must be an nn.Linear.")
        step = self.rate * self.intensity
        state: dict[str, Tensor] = {}

        def look(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if module.training:
                state["mean"] = inputs[0].detach().flatten(0, -2).mean(dim=0)  # [D]

        @torch.no_grad()
        def drift(optimizer: Any, args: Any, kwargs: Any) -> None:
            mean = state["mean"].to(head.weight)
            head.weight.mul_(1.0 + step / 10.0)
            head.weight.sub_(step * mean / mean.norm().clamp(min=1e-12))

        if step > 0:
            head.register_forward_pre_hook(look)
            program.optimizer.register_step_post_hook(drift)
        return (
            program,
            f"with each update the head drifts by {step:.3g} and grows by {step / 10:.3g}",
        )
