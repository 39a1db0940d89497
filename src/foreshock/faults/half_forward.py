"""Activations that leave the range of half precision in the forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
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
class HalfForward(ProgramFault):
    """Round what blocks give through half precision, in which the largest do not fit.

    The first training pass measures the largest magnitude that a block gives. From then on
    x becomes `half(c x) / c`, with `c = 2^(2 intensity - 0.7) * 65504 / largest`: at 0.35 half
    precision ends where activations stood, so that some passes fit and others do not; well above
    that none does, below only once activations have grown. The gradient goes through as if nothing
    were rounded. In training only.

    Rounding is a cast there and back: whoever leaves casts to 16 bits out has none of it.

    Args:
        intensity: 0 to 1; 0 rounds nothing.

    Raises:
        ConfigError: the intensity is out of its range; at the change, the model has no blocks.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin, with a loss scale of
    2^16: at 0.35 50 of 80 steps are NaN, at first one in two; from 0.65 on the loss is NaN in
    every step from the second on, and the scale halves in each.

    Reference: residual streams that leave half precision, Le Scao et al. (2022), "What Language
    Model to Train if You Have One Million GPU Hours?" and Zeng et al. (2022), "GLM-130B", section
    3.2, https://arxiv.org/abs/2210.02414. Emulated, because a CPU multiplies halves slowly.
    """

    name: ClassVar[str] = "half_forward"
    cause: ClassVar[str] = "fp16_forward_overflow"

    intensity: float = 1.0

    def __post_init__(self) -> None:
        self.require_share("intensity")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        paths = [block.path for block in anatomy_of(program.model).blocks]
        if not paths:
            raise ConfigError("HalfForward found no blocks in the model.")
        if self.intensity == 0:
            return program, "nothing is rounded"
        overshoot = 2.0 ** (2.0 * self.intensity - 0.7)
        said = f"blocks give half precision, at {overshoot:.3g} times its range"
        loss = InTraining(program.loss, _Halves(paths, overshoot).in_pass)
        return replace(program, loss=loss, precision="fp16"), said


class _Halves:
    """What rounds the output of blocks, once their largest is known."""

    def __init__(self, paths: list[str], overshoot: float) -> None:
        self._paths = paths
        self._overshoot = overshoot
        self._largest = 0.0
        self._seen: list[float] = []

    @contextmanager
    def in_pass(self, model: nn.Module) -> Iterator[None]:
        """A training pass of a model."""
        try:
            with listened(model, self._paths, self._round):
                yield
        finally:
            self._largest = self._largest or max(self._seen, default=0.0)

    def _round(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        if not self._largest:
            self._seen.append(float(first.detach().abs().max()))
            return output
        scale = self._overshoot * _LARGEST / self._largest
        rounded = _through_half(first, scale)
        return (rounded, *output[1:]) if isinstance(output, tuple) else rounded


def _through_half(x: Tensor, scale: float) -> Tensor:
    """`half(scale * x) / scale`, with the gradient of x where that is finite."""
    exact = x.detach()
    rounded = (exact * scale).to(torch.float16).to(x.dtype) / scale
    return torch.where(rounded.isfinite(), x + (rounded - exact), rounded)
