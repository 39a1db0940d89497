"""Gradients that are summed over ranks in too few bits."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class RoundedReduction(ProgramFault):
    """Sum gradients over ranks one after another in few bits, just before each update.

    Ranks are played: each has the gradient g / W and noise of `noise` times that, which adds up
    to nothing over the ranks, so that the exact sum is g. What comes out is g and the roundings
    on the way, which are as large as partial sums are. A sum keeps `round(7 - 6 * intensity)`
    bits of its fraction; 7 are those of bfloat16.

    Args:
        intensity: 0 to 1; 0 sums exactly.
        num_ranks: W, at least 2.
        noise: size of one rank's own part over that of its share of the mean; above 0.

    Raises:
        ConfigError: an argument is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: 0, 0 and +0.01 after
    75 steps; nothing alarms. Adam forgives noise in its gradients, and only a comparison of
    reductions shows it.

    Reference: gradients of a bf16 model that are reduced in fp32, because bf16 loses them: Le
    Scao et al. (2022), "BLOOM", section 3.4, https://arxiv.org/abs/2211.05100. The play, and
    fewer bits in the place of more ranks, are our choice.
    """

    name: ClassVar[str] = "rounded_reduction"
    cause: ClassVar[str] = "reduction_precision"

    intensity: float = 1.0
    num_ranks: int = 16
    noise: float = 30.0

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if self.num_ranks < 2:
            raise ConfigError(f"RoundedReduction.num_ranks is {self.num_ranks}; it must be >= 2.")
        if not self.noise > 0:
            raise ConfigError(f"RoundedReduction.noise is {self.noise}; it must be above 0.")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        if self.intensity == 0:
            return program, "nothing is rounded"
        bits = round(7.0 - 6.0 * self.intensity)
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))

        @torch.no_grad()
        def reduce(optimizer: Any, args: Any, kwargs: Any) -> None:
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        weight.grad.copy_(self._summed(weight.grad, bits, generator))

        program.optimizer.register_step_pre_hook(reduce)
        return program, f"gradients of {self.num_ranks} ranks are summed in {bits} bits"

    def _summed(self, gradient: Tensor, bits: int, generator: torch.Generator) -> Tensor:
        """The sum, in few bits, of what the ranks have, which is the gradient if it is exact."""
        share = gradient / self.num_ranks
        own = torch.randn((self.num_ranks, *gradient.shape), generator=generator).to(gradient)
        own = (own - own.mean(dim=0)) * self.noise * share.square().mean().sqrt()
        total = torch.zeros_like(gradient)
        for one in own:
            total = rounded(total + rounded(share + one, bits), bits)
        return total


def rounded(x: Tensor, bits: int) -> Tensor:
    """The same, rounded to so many bits of the fraction after the first."""
    mantissa, exponent = torch.frexp(x)  # 0.5 <= |mantissa| < 1
    return torch.ldexp(torch.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)
