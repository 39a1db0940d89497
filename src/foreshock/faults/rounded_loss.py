"""A loss in whose softmax small probabilities are lost."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, nll_loss

from foreshock.calls import Answered, InTraining, leading
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class RoundedLoss(ProgramFault):
    """Take cross-entropy with the sum of exponentials in few bits.

    log Z is `max + log(sum exp(z - max))`, with the sum rounded to `round(23 - 16 * intensity)`
    bits of its fraction: 23 are those of float32, 7 those of bfloat16. Where one logit is far
    above the others, the sum is 1: the loss is exactly 0, the right class has no gradient any
    more and the others have, so that all logits drift apart. It works on calls of
    `torch.nn.functional.cross_entropy` on `[N, V]`, in training only; label smoothing is left out.

    The bits are taken from a cast to float32: whoever computes in float64 regardless has none of
    it.

    Args:
        intensity: 0 to 1; 0 rounds nothing.

    Raises:
        ConfigError: the intensity is out of its range.

    Measured on the lab's slingshot program (lr 1e-2), 3,000 steps: in 7 bits six spikes from
    step 100 on, to 74 nats; in 13 bits (0.65) one, at 2,961; in 17 bits (0.35) and exactly
    none. On a language model, whose loss is far from 0, it does nothing.

    Reference: Prieto et al. (2025), "Grokking at the Edge of Numerical Stability",
    https://arxiv.org/abs/2501.04697, on softmax collapse; slingshots, Thilak et al. (2022),
    https://arxiv.org/abs/2206.04817.
    """

    name: ClassVar[str] = "rounded_loss"
    cause: ClassVar[str] = "loss_precision"

    intensity: float = 1.0

    def __post_init__(self) -> None:
        self.require_share("intensity")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        if self.intensity == 0:
            return program, "nothing is rounded"
        bits = round(23.0 - 16.0 * self.intensity)

        def answer(args: tuple[Any, ...], given: dict[str, Any]) -> Tensor:
            logits, target, *_ = leading(args, given, "input", "target")
            settings = {n: given[n] for n in ("weight", "ignore_index", "reduction") if n in given}
            return nll_loss(log_probabilities(logits, bits), target, **settings)

        loss = InTraining(program.loss, lambda _: Answered(cross_entropy, answer))
        return replace(program, loss=loss), f"the softmax of the loss sums in {bits} bits"


def log_probabilities(logits: Tensor, bits: int) -> Tensor:
    """Log-softmax `[N, V]` over V, the sum in it rounded to so many bits of its fraction.

    Its gradient is that of what was computed: where the sum is rounded to 1, the right class
    has none.
    """
    centred = logits - logits.max(dim=-1, keepdim=True).values.detach()
    exact = centred.exp().sum(dim=-1, keepdim=True)
    low = exact.detach().to(torch.float32)
    if low.dtype != torch.float32:
        return centred - exact.log()
    mantissa, exponent = torch.frexp(low)  # 0.5 <= mantissa < 1
    coarse = torch.ldexp(torch.round(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)
    return centred - (exact + (coarse.to(exact.dtype) - exact.detach())).log()
