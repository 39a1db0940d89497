"""Second moments that do not keep up: other data under a beta2 near 1."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.forced_settings import ForcedSettings
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class ShiftedMix(ProgramFault):
    """Shift the bytes of half of each batch by 128, with second moments that hardly move.

    beta2 is held at `beta2`; a share `intensity / 2` of the samples of each batch comes with
    `(byte + 128) mod 256`. Gradients grow, v does not, and sqrt(mean g^2 / v) is the factor by
    which updates are too large; where beta2 is small they are not.

    Args:
        intensity: 0 to 1; 0 changes neither data nor beta2.
        beta2: of every group with `betas`, above 0 and below 1.

    Raises:
        ConfigError: an argument is out of its range; at the change, no group has `betas`; in
            training, a batch is no tensor of bytes.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: +1.4, +2.2 and +3.5 in
    the first five steps, +0.2, +0.3 and +0.4 to the end, with RMS_t at 5.7 and updates 3 times
    as large after 6. Loss and gradient norm alarm in the first step.

    Reference: Wortsman et al. (2023), "Stable and low-precision training for large-scale
    vision-language models", section 3, https://arxiv.org/abs/2304.13013. The data are our choice.
    """

    name: ClassVar[str] = "shifted_mix"
    cause: ClassVar[str] = "stale_second_moment"

    intensity: float = 1.0
    beta2: float = 0.999

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if not 0.0 < self.beta2 < 1.0:
            raise ConfigError(f"ShiftedMix.beta2 is {self.beta2}; it must be between 0 and 1.")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        if not any("betas" in group for group in program.optimizer.param_groups):
            kind = type(program.optimizer).__name__
            raise ConfigError(f"ShiftedMix: no group of this {kind} has betas.")
        if self.intensity == 0:
            return program, "nothing was shifted"

        def slow(place: int, group: Mapping[str, Any]) -> dict[str, Any]:
            return {"betas": (group["betas"][0], self.beta2)} if "betas" in group else {}

        def shifted(model: Any, batch: Any) -> Any:
            return program.loss(model, self.shift(batch) if model.training else batch)

        ForcedSettings(program.model, program.optimizer, slow)
        share = self.intensity / 2
        said = f"{share:.0%} of each batch is shifted by 128, and beta2 is {self.beta2:g}"
        return replace(program, loss=shifted), said

    def shift(self, batch: Tensor) -> Tensor:
        """The same `[B, ...]`, its first `round(B * intensity / 2)` samples shifted."""
        if not isinstance(batch, Tensor) or batch.is_floating_point():
            raise ConfigError("ShiftedMix needs batches that are tensors of bytes, as integers.")
        num = round(len(batch) * self.intensity / 2)
        return torch.cat(((batch[:num] + 128) % 256, batch[num:]))
