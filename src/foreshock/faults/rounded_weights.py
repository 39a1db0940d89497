"""Weights that are kept in few bits, without a copy in more."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class RoundedWeights(ProgramFault):
    """Round every weight after every update, so that small updates are lost.

    A weight keeps `round(4 - 4 * intensity)` bits of its fraction; bfloat16 has 7. An
    update below half of the last bit does nothing, however often it comes.

    Args:
        intensity: 0 to 1; 0 rounds nothing.

    Raises:
        ConfigError: the intensity is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: +0.02 (at 3 bits),
    +0.08 (1 bit, 0.65) and +0.11 (none) after 75 steps. The update ratio alarms in the first
    step from 0.65 on, since the first rounding moves the weights.

    Reference: updates that vanish in weights without a master copy, Micikevicius et al. (2017),
    "Mixed Precision Training", section 3.1, https://arxiv.org/abs/1710.03740. Fewer bits than
    bfloat16 stand for the smaller updates of a larger model.
    """

    name: ClassVar[str] = "rounded_weights"
    cause: ClassVar[str] = "low_precision_numerics"

    intensity: float = 1.0

    def __post_init__(self) -> None:
        self.require_share("intensity")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        if self.intensity == 0:
            return program, "nothing is rounded"
        bits = round(4.0 - 4.0 * self.intensity)

        @torch.no_grad()
        def forget(optimizer: Any, args: Any, kwargs: Any) -> None:
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    weight.copy_(rounded(weight, bits))

        program.optimizer.register_step_post_hook(forget)
        said = f"weights keep {bits} bits of their fraction after each update"
        return replace(program, precision="bf16"), said


def rounded(x: Tensor, bits: int) -> Tensor:
    """The same, rounded to so many bits of the fraction after the first."""
    mantissa, exponent = torch.frexp(x)  # 0.5 <= |mantissa| < 1
    return torch.ldexp(torch.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)
