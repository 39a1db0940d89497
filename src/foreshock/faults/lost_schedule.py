"""A schedule that was lost: the rate begins anew, or stands still at its peak."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from torch.optim.lr_scheduler import LambdaLR

from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.forced_settings import ForcedSettings
from foreshock.core.program import Program

Mode = Literal["restarted", "constant"]
MODES: tuple[Mode, ...] = ("restarted", "constant")


@final
@dataclass(frozen=True, kw_only=True)
class LostSchedule(ProgramFault):
    """Give steps the rate of a schedule that has forgotten where it was.

    - `restarted`: the rate of the schedule's own beginning, warm-up and all, from the first
      step that is trained with the changed program.
    - `constant`: `initial_lr` for good, as with a scheduler that was not restored at all.

    Args:
        mode: which of the two.
        intensity: 0 to 1. The rate is `own^(1 - intensity) * lost^intensity`.

    Raises:
        ConfigError: an argument is not allowed; at the change, the program's scheduler is no
            `LambdaLR`.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: +0.01, +0.03 and +0.05
    `restarted`, +0.01, +0.02 and +0.03 `constant`, within 75 steps, with a rate of 1/16 at
    first and twice its own later. Loss and gradient alarm in none;
    the advisory `rate_break` told of `constant` at 0.65, in the first step.

    Reference: a scheduler is not part of a model's or an optimizer's state, and has to be saved
    by itself; the commonest slip of a resume by hand. Which two kinds is our choice.
    """

    name: ClassVar[str] = "lost_schedule"
    cause: ClassVar[str] = "schedule_lost"

    mode: Mode = "restarted"
    intensity: float = 1.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"LostSchedule.mode is {self.mode!r}; allowed: {', '.join(MODES)}.")
        self.require_share("intensity")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        scheduler = program.scheduler
        if not isinstance(scheduler, LambdaLR):
            raise ConfigError(
                f"LostSchedule: the scheduler is a {type(scheduler).__name__}; it must be a "
                "LambdaLR, whose rate can be asked for any step."
            )
        if self.intensity == 0:
            return program, "the schedule was left as it is"
        begun: list[int] = []  # the step of the schedule at the first step with the fault

        def lost(place: int, group: Mapping[str, Any]) -> dict[str, Any]:
            begun.extend([scheduler.last_epoch] if not begun else [])
            rate = float(group["initial_lr"])
            if self.mode == "restarted":
                since = max(0, scheduler.last_epoch - begun[0])
                rate *= float(scheduler.lr_lambdas[place](since))
            own = float(group["lr"])
            return {"lr": own ** (1 - self.intensity) * rate**self.intensity}

        ForcedSettings(program.model, program.optimizer, lost)
        if self.mode == "constant":
            return program, "the rate stands still at its peak: the scheduler was not restored"
        return program, "the schedule begins anew with its warm-up"
