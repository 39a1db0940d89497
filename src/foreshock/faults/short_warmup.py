"""A warm-up that is over too early."""

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
class ShortWarmup(ProgramFault):
    """Cut a linear warm-up short, in a run with a high rate.

    From the first step with the fault on, while the schedule's share of `initial_lr` rises, it
    rises `steepest ** intensity` times as fast, from where it stands, up to `peak ** intensity`;
    there the rate stays until the long warm-up is over, and falls with the schedule after it. So
    nothing jumps, wherever in a warm-up it begins; in a run without one it does nothing.

    Args:
        intensity: 0 to 1; 0 changes nothing, the peak neither.
        peak: on the rate, at least 1, with which the long warm-up would have been all right.
        steepest: how many times as fast the rate rises at 1, at least `peak`.

    Raises:
        ConfigError: an argument is out of its range; at the change, a group has no
            `initial_lr`, which a scheduler of torch puts there.

    Measured on a GPT 64 wide on bytes (lr 6e-3), from step 252 of a warm-up of 480, at 0.65: the
    loss ends where that of a healthy run does, and nothing alarms. It does no harm at this size.

    Reference: what warm-up is for: Kalra and Barkeshli (2024), "Why Warmup the Learning Rate?",
    https://arxiv.org/abs/2406.09405.
    """

    name: ClassVar[str] = "short_warmup"
    cause: ClassVar[str] = "warmup_too_short"

    intensity: float = 1.0
    peak: float = 4.0
    steepest: float = 40.0

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if not self.peak >= 1:
            raise ConfigError(f"ShortWarmup.peak is {self.peak}; it must be at least 1.")
        if not self.steepest >= self.peak:
            raise ConfigError(
                f"ShortWarmup.steepest is {self.steepest}; it must be at least the peak, "
                f"{self.peak}."
            )

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        if any("initial_lr" not in group for group in program.optimizer.param_groups):
            raise ConfigError("ShortWarmup needs groups with an initial_lr: a scheduler of torch.")
        if self.intensity == 0:
            return program, "the warm-up was left as it is"
        top, slope = self.peak**self.intensity, self.steepest**self.intensity
        courses: dict[int, _Course] = {}

        def hurried(place: int, group: Mapping[str, Any]) -> dict[str, Any]:
            share = float(group["lr"]) / float(group["initial_lr"])
            course = courses.setdefault(place, _Course(begun=share, highest=share))
            return {"lr": course.share(share, top, slope) * group["initial_lr"]}

        ForcedSettings(program.model, program.optimizer, hurried)
        return program, (
            f"the warm-up goes on {slope:.3g} times as fast, to {top:.3g} times the rate"
        )


@dataclass
class _Course:
    """Where a group's share of its rate began to rise faster, and how high it was since."""

    begun: float
    highest: float
    is_over: bool = False

    def share(self, own: float, top: float, slope: float) -> float:
        """The share with the fault for the schedule's own."""
        self.is_over = self.is_over or own < self.highest
        self.highest = max(self.highest, own)
        reached = self.begun + (self.highest - self.begun) * slope
        reached = max(self.highest, min(top, reached))
        return reached * own / self.highest if self.is_over else reached
