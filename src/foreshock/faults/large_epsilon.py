"""An epsilon that gradients do not reach."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.forced_settings import ForcedSettings
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class LargeEpsilon(ProgramFault):
    """Hold Adam's eps at a value that is not small beside the gradients.

    The update m / (sqrt(v) + eps) then collapses, for the smallest gradients first, and is no
    longer of one size for all. Stands for gradients that have shrunk to eps, as those of early
    layers do with large batches; the ratio of the two is all that Adam sees.

    Args:
        intensity: 0 to 1; eps is its own times `10^(8 * intensity)`, 1 at 1 for
            a usual 1e-8.

    Raises:
        ConfigError: the intensity is out of its range; at the change, no group has an `eps`.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed): at 0.65, from
    step 261 on, the loss ends 120 steps later at 2.40 where a healthy run ends at 2.09, on
    other data. Updates collapse and nothing alarms: a loss that stops falling is seen late.

    Reference: Molybog et al. (2023), "A Theory on Adam Instability in Large-Scale Machine
    Learning", https://arxiv.org/abs/2304.09871, for gradients near eps. Raising eps is our choice.
    """

    name: ClassVar[str] = "large_epsilon"
    cause: ClassVar[str] = "tiny_gradients_vs_epsilon"

    intensity: float = 1.0

    def __post_init__(self) -> None:
        self.require_share("intensity")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        if not any("eps" in group for group in program.optimizer.param_groups):
            kind = type(program.optimizer).__name__
            raise ConfigError(f"LargeEpsilon: no group of this {kind} has an eps.")
        factor = 10.0 ** (8.0 * self.intensity)

        def raised(place: int, group: Mapping[str, Any]) -> dict[str, Any]:
            return {"eps": group["eps"] * factor} if "eps" in group else {}

        ForcedSettings(program.model, program.optimizer, raised)
        return program, f"multiplied the optimizer's eps by {factor:.3g}"
