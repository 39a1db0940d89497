"""Gradients that leave the range of half precision in the backward pass."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from foreshock.anatomy import anatomy_of
from foreshock.calls import InTraining, listened
from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program

_LARGEST = 65504.0  # torch.finfo(torch.float16).max


@final
@dataclass(frozen=True, kw_only=True)
class HalfGradient(ProgramFault):
    """Round the gradients of what blocks give through half precision, in which they do not fit.

    The first backward pass measures the largest magnitude, with the loss scale as it is then.
    From then on a gradient g becomes `half(c g) / c`, with `c = 2^(falls intensity) * 65504 /
    largest`: a loss scale has to be halved `falls * intensity` times until all are finite. The
    loss is finite throughout. Without a scaler nothing brings them back. In training only.

    Rounding is a cast there and back: whoever leaves casts to 16 bits out has none of it.

    Args:
        intensity: 0 to 1; 0 rounds nothing.
        falls: powers of two at 1, above 0.

    Raises:
        ConfigError: an argument is out of its range; at the change, the model has no blocks.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin, with a loss scale of
    2^16: it falls to 2^11, 2^7 and 2^3 over 5, 9 and 13 skipped steps with a finite loss, most
    of them in a row; the loss is +0.02 afterwards. Gradients alarm in the second step. Without
    a scaler no update is made any more.

    Reference: a loss scale that falls while the loss is finite, Zeng et al. (2022), "GLM-130B",
    https://arxiv.org/abs/2210.02414, its public log around step 33,710; Micikevicius et al.
    (2017), "Mixed Precision Training", https://arxiv.org/abs/1710.03740.
    """

    name: ClassVar[str] = "half_gradient"
    cause: ClassVar[str] = "fp16_gradient_overflow"

    intensity: float = 1.0
    falls: float = 12.0

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if not self.falls > 0:
            raise ConfigError(f"HalfGradient.falls is {self.falls}; it must be above 0.")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        paths = [block.path for block in anatomy_of(program.model).blocks]
        if not paths:
            raise ConfigError("HalfGradient found no blocks in the model.")
        if self.intensity == 0:
            return program, "nothing is rounded"
        falls = self.falls * self.intensity
        loss = InTraining(program.loss, _Halves(paths, 2.0**falls).in_pass)
        said = f"gradients of blocks are half precision, at 2^{falls:.3g} times its range"
        return replace(program, loss=loss, precision="fp16"), said


class _Halves:
    """What rounds gradients where blocks give their output, once their largest is known."""

    def __init__(self, paths: list[str], overshoot: float) -> None:
        self._paths = paths
        self._overshoot = overshoot
        self._largest = 0.0
        self._seen: list[float] = []

    def in_pass(self, model: nn.Module) -> AbstractContextManager[None]:
        """A training pass of a model."""
        self._largest = self._largest or max(self._seen, default=0.0)
        return listened(model, self._paths, self._hook)

    def _hook(self, module: nn.Module, inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if first.requires_grad:
            first.register_hook(self._round)

    def _round(self, gradient: Tensor) -> Tensor:
        if not self._largest:
            self._seen.append(float(gradient.abs().max()))
            return gradient
        scale = self._overshoot * _LARGEST / self._largest
        rounded = (gradient * scale).to(torch.float16).to(gradient.dtype) / scale
        return rounded.to(gradient)  # a mode may compute in another type
