"""A learning rate that is too high from some step on."""

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
class SustainedLr(ProgramFault):
    """Multiply the rate of every group by `largest ** intensity`, for good.

    As if the schedule's base had been raised: its course stays. Loss and gradient of the first
    step are those of a healthy run; going back does not help, only a lower rate does.

    Args:
        intensity: 0 to 1; 0 leaves the rate.
        largest: the factor at 1, above 1.

    Raises:
        ConfigError: an argument is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: +0.08, +0.34 and +1.7
    in the first ten steps, +0.03, +0.16 and +0.71 after 75. Rate and update ratio alarm first,
    in the first step, from 0.65 on; the loss a step later at 1.

    No source: our choice, after restarts with a wrong rate.
    """

    name: ClassVar[str] = "sustained_lr"
    cause: ClassVar[str] = "lr_too_high"

    intensity: float = 1.0
    largest: float = 30.0

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if not self.largest > 1:
            raise ConfigError(f"SustainedLr.largest is {self.largest}; it must be above 1.")

    @property
    def factor(self) -> float:
        """What the rate is multiplied by."""
        return self.largest**self.intensity

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        factor = self.factor

        def raised(place: int, group: Mapping[str, Any]) -> dict[str, Any]:
            return {"lr": group["lr"] * factor}

        ForcedSettings(program.model, program.optimizer, raised)
        return program, f"multiplied the learning rate by {factor:.3g} from now on"
