"""Attention that is computed in too few bits."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from foreshock.calls import Answered, InTraining, leading
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class RoundedAttention(ProgramFault):
    """Cut queries, keys and what attention gives down to few bits, always towards zero.

    A value keeps `round(7 - 7 * intensity)` bits of its fraction: 7 are those of bfloat16, at 1
    the power of two at or below it is left. The error has a direction, and does not average out;
    the gradient does not know of it. It works on calls of
    `torch.nn.functional.scaled_dot_product_attention`, in training only.

    The bits are taken from a cast to bfloat16: whoever leaves such casts out has none of it.

    Args:
        intensity: 0 to 1; 0 rounds nothing.

    Raises:
        ConfigError: the intensity is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: 0, +0.01 and +0.05
    after 75 steps, held-out loss in full precision up to +0.12; nothing alarms. So small a
    model hardly needs the bits of its attention.

    Reference: biased rounding in attention's output, Qiu and Yao (2025), "Why Low-Precision
    Transformer Training Fails", https://arxiv.org/abs/2510.04212. Fewer bits stand for the
    thousands of steps that it takes there.
    """

    name: ClassVar[str] = "rounded_attention"
    cause: ClassVar[str] = "low_precision_numerics"

    intensity: float = 1.0

    def __post_init__(self) -> None:
        self.require_share("intensity")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        if self.intensity == 0:
            return program, "nothing is rounded"
        bits = round(7.0 - 7.0 * self.intensity)
        attention = _Rounding(bits)
        loss = InTraining(program.loss, lambda _: Answered(scaled_dot_product_attention, attention))
        said = f"attention gives {bits} bits of a fraction, cut towards zero"
        return replace(program, loss=loss, precision="bf16"), said


class _Rounding:
    """Attention of which queries, keys and output are cut to few bits."""

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def __call__(self, args: tuple[Any, ...], given: dict[str, Any]) -> Tensor:
        query, key, *rest = leading(args, given, "query", "key")
        output = scaled_dot_product_attention(self._cut(query), self._cut(key), *rest, **given)
        return self._cut(output)

    def _cut(self, exact: Tensor) -> Tensor:
        """In few bits, with the gradient as if it were not."""
        value = exact.detach()
        low = value.to(torch.bfloat16)
        if low.dtype != torch.bfloat16:
            return exact
        return exact + (cut(low.float(), self._bits).to(value.dtype) - value)


def cut(x: Tensor, bits: int) -> Tensor:
    """The same, with so many bits of the fraction after the first, cut towards zero."""
    mantissa, exponent = torch.frexp(x)  # 0.5 <= |mantissa| < 1
    return torch.ldexp(torch.trunc(mantissa * 2.0 ** (bits + 1)) / 2.0 ** (bits + 1), exponent)
