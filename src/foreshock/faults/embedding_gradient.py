"""Gradients of the embedding that outgrow all the others."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from torch import Tensor, nn

from foreshock.anatomy import anatomy_of
from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class EmbeddingGradient(ProgramFault):
    """Multiply the gradient of the embedding by a factor that rises and falls back.

    In pass n with the fault it is `(1 + largest * intensity)^(r / 10)`, with r the remainder of n
    by 11: ten passes up, one back. The others follow only as clipping makes them smaller.

    Args:
        intensity: 0 to 1.
        largest: the largest factor at 1, less 1; above 0.

    Raises:
        ConfigError: an argument is out of its range; at the change, no embedding with a weight
            that is trained is found in the model.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: +0.04, +0.05 and +0.05
    after 75 steps, with a gradient norm 6 to 9 times as large at 0.35, 97 % of its square the
    embedding's. The gradient norm alarms first, in the sixth step.

    Reference: gradients of the embedding a few steps before the loss spikes, Zeng et al. (2022),
    "GLM-130B", section 3.2, https://arxiv.org/abs/2210.02414. Their course is our choice.
    """

    name: ClassVar[str] = "embedding_gradient"
    cause: ClassVar[str] = "embedding_gradient"

    intensity: float = 1.0
    largest: float = 200.0

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if not self.largest > 0:
            raise ConfigError(f"EmbeddingGradient.largest is {self.largest}; it must be above 0.")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        model: nn.Module = program.model
        modules = [model.get_submodule(path) for path in anatomy_of(model).embeddings]
        weights = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
        if not weights:
            raise ConfigError("EmbeddingGradient found no embedding that this model trains.")
        top = 1.0 + self.largest * self.intensity
        passes = dict.fromkeys(weights, 0)

        def arm(parameter: nn.Parameter) -> None:
            def grow(gradient: Tensor) -> Tensor:
                passes[id(parameter)] += 1
                factor = top ** (passes[id(parameter)] % 11 / 10)
                return (gradient * factor).to(gradient)  # a mode may compute in another type

            parameter.register_hook(grow)

        for parameter in weights.values():
            arm(parameter)
        return program, f"the embedding's gradient rises to {top:.3g} times itself, and falls back"
