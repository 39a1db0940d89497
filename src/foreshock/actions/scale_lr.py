"""Lower the learning rate."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl
from foreshock.core.override import LRFactor


@dataclass(frozen=True, kw_only=True)
class ScaleLR(Action):
    """Multiply the learning rate by `factor` from `first_step` on.

    An override around the optimizer's step: the scheduler and the snapshots never see
    it, so that neither undoes it. After `hold_steps` it goes back to 1 in equal parts, as a
    rate is warmed up after a restart. Several multiply each other.

    Args:
        factor: multiplier, above 0 and at most 1.
        first_step: first step that it holds for.
        hold_steps: how many steps it holds in full; None is until the end.
        ramp_steps: over how many it goes back to 1; 0 is at once. Longer is safer where the
            moments have become those of a small rate, and slower.

    Raises:
        ConfigError: an argument is out of its range.

    Reference: Zhang et al. 2022, OPT-175B (lower rate after restarts); the way back is linear
    as in Goyal et al. 2017, 2.2. Marin's 32B run re-warmed over 1,000 steps.
    """

    name: ClassVar[str] = "scale_lr"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SCALE_LR})
    factor: float
    first_step: int
    hold_steps: int | None = None
    ramp_steps: int = 0

    def __post_init__(self) -> None:
        LRFactor(
            factor=self.factor,
            first_step=self.first_step,
            hold_steps=self.hold_steps,
            ramp_steps=self.ramp_steps,
        )

    def apply(self, control: TrainingControl) -> str:
        return control.scale_lr(self.factor, self.first_step, self.hold_steps, self.ramp_steps)
