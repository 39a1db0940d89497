"""One flipped bit in the memory that holds the weights."""

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from foreshock.core.errors import ConfigError
from foreshock.core.fault import StateFault

INTEGERS = {16: torch.int16, 32: torch.int32, 64: torch.int64}  # by width in bits


@final
@dataclass(frozen=True, kw_only=True)
class WeightBitFlip(StateFault):
    """Flip one exponent bit of one weight, drawn evenly from all weights of the model.

    Bit i of the exponent, counted from 0 at its low end, multiplies the weight by 2^(2^i) if it
    was clear and divides it by as much if it was set. In a weight below 2 the highest bit is
    clear and, unless the weight is tiny, the next few are set: only the highest does real harm
    (times 2^128 in float32 and bfloat16, 2^16 in float16), the others mostly shrink a weight.

    Args:
        bits_below_top: which exponent bit, 0 for the highest. Raising it makes the fault
            quieter.

    Raises:
        ConfigError: `bits_below_top` is negative; at injection, the model has no weights of 16,
            32 or 64 bits, or the exponent of the drawn weight has fewer bits.

    Reference: hardware that corrupts data without an error, Dixit et al. (2021), "Silent Data
    Corruptions at Scale", https://arxiv.org/abs/2102.11245. One flipped bit is our choice.
    """

    name: ClassVar[str] = "weight_bit_flip"
    cause: ClassVar[str] = "weight_corruption"

    bits_below_top: int = 0

    def __post_init__(self) -> None:
        if self.bits_below_top < 0:
            raise ConfigError(
                f"WeightBitFlip.bits_below_top is {self.bits_below_top}; it must be >= 0."
            )

    @torch.no_grad()
    def inject(self, model: nn.Module, optimizer: Optimizer, rng: np.random.Generator) -> str:
        weights = [
            (path, weight)
            for path, weight in model.named_parameters()
            if weight.is_floating_point() and 8 * weight.element_size() in INTEGERS
        ]
        if not weights:
            raise ConfigError("WeightBitFlip found no weights of 16, 32 or 64 bits in the model.")
        ends = np.cumsum([weight.numel() for _, weight in weights])
        drawn = int(rng.integers(ends[-1]))
        which = int(np.searchsorted(ends, drawn, side="right"))
        path, weight = weights[which]
        index = np.unravel_index(drawn - int(ends[which]) + weight.numel(), weight.shape)

        num_bits = 8 * weight.element_size()
        num_exponent_bits = num_bits - 1 + round(math.log2(torch.finfo(weight.dtype).eps))
        if self.bits_below_top >= num_exponent_bits:
            raise ConfigError(
                f"WeightBitFlip.bits_below_top is {self.bits_below_top}; the exponent of "
                f"{weight.dtype} has {num_exponent_bits} bits, so it must be below that."
            )
        bit = num_bits - 2 - self.bits_below_top
        element = weight[tuple(int(i) for i in index)]  # [], shares the weight's memory
        before = element.item()
        element.view(INTEGERS[num_bits]).bitwise_xor_(1 << bit)
        place = ", ".join(str(int(i)) for i in index)
        return f"flipped bit {bit} of {path}[{place}]: {before:.6g} became {element.item():.6g}"
