"""A loss that is normalised twice, or not at all."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np

from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Loss, Program

Mode = Literal["summed", "divided_twice"]
MODES: tuple[Mode, ...] = ("summed", "divided_twice")


@final
@dataclass(frozen=True, kw_only=True)
class SummedLoss(ProgramFault):
    """Multiply the loss, and with it every gradient, by one number.

    - `summed`: by `count ** intensity`: a sum over samples, ranks or micro-steps in the place
      of their mean.
    - `divided_twice`: by `count ** -intensity`.

    Adam's updates do not care, but for the steps in which its moments learn the new scale;
    clipping does: of a sum it clips every step.

    Args:
        mode: which of the two.
        intensity: 0 to 1, as above.
        count: what the mean is over, above 1.

    Raises:
        ConfigError: an argument is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin, of `summed`: the loss
    alarms from the first step on in every step, and the gradient norm with it from 0.65 on;
    updates are as they were. `divided_twice` lowers the loss by the factor and raises no alarm;
    held-out loss +0.01, +0.02 and +0.07.

    Reference: losses averaged over micro-steps of unequal numbers of tokens, and other slips:
    Unsloth and Hugging Face (2024), "Fixing Gradient Accumulation",
    https://huggingface.co/blog/gradient_accumulation.
    """

    name: ClassVar[str] = "summed_loss"
    cause: ClassVar[str] = "loss_normalisation"

    mode: Mode = "summed"
    intensity: float = 1.0
    count: int = 64

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"SummedLoss.mode is {self.mode!r}; allowed: {', '.join(MODES)}.")
        self.require_share("intensity")
        if self.count < 2:
            raise ConfigError(f"SummedLoss.count is {self.count}; it must be above 1.")

    @property
    def factor(self) -> float:
        """What the loss is multiplied by."""
        return self.count ** (self.intensity if self.mode == "summed" else -self.intensity)

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        factor = self.factor

        def wrong(model: Any, batch: Any) -> Any:
            loss = program.loss(model, batch)
            if not model.training:
                return loss
            if isinstance(loss, Loss):
                return replace(loss, total=loss.total * factor)
            return loss * factor

        return replace(program, loss=wrong), f"multiplied the training loss by {factor:.3g}"
