"""Attention that is computed in too few bits."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from foreshock.core.errors import ConfigError
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
        if not 0.0 <= self.intensity <= 1.0:
            raise ConfigError(f"RoundedAttention.intensity is {self.intensity}; it must be 0 to 1.")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        if self.intensity == 0:
            return program, "nothing is rounded"
        bits = round(7.0 - 7.0 * self.intensity)
        loss = _InFewBits(program.loss, bits)
        said = f"attention gives {bits} bits of a fraction, cut towards zero"
        return replace(program, loss=loss, precision="bf16"), said


class _InFewBits:
    """A loss in whose training passes attention is cut to few bits."""

    def __init__(self, loss: Callable[[Any, Any], Any], bits: int) -> None:
        self._loss = loss
        self._bits = bits

    def __call__(self, model: Any, batch: Any) -> Any:
        if not model.training:
            return self._loss(model, batch)
        with _Rounding(self._bits):
            return self._loss(model, batch)


class _Rounding(TorchFunctionMode):
    def __init__(self, bits: int) -> None:
        super().__init__()
        self._bits = bits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is not scaled_dot_product_attention:
            return func(*args, **given)
        query, key, *rest = [*args, *(given.pop(n) for n in ("query", "key") if n in given)]
        output = func(self._cut(query), self._cut(key), *rest, **given)
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
