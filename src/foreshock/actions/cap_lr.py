"""Keep the learning rate from rising above what it was."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl
from foreshock.core.override import LRCap


@dataclass(frozen=True, kw_only=True)
class CapLR(Action):
    """Let the learning rate be at most `max_lr` from `first_step` on.

    `rate = min(rate as scheduled, max_lr)`, where the optimizer reads it: around its step, so
    that it does not matter who raised the rate, and neither the scheduler nor a snapshot sees
    it. A rate that is not above the cap is left as it is, to the bit: a jump that does not
    come again costs nothing. After `hold_steps` what is above the cap comes back in equal parts.
    Of several caps the lowest counts.

    Args:
        max_lr: of the first parameter group, factors on it included; above 0. The others
            keep their proportion to it.
        first_step: first step that it holds for.
        hold_steps: how many steps it holds in full; None is until the end.
        ramp_steps: over how many it is taken back; 0 is at once.

    Raises:
        ConfigError: an argument is out of its range.

    No source: our choice, because halving a rate that jumped twentyfold leaves it ten times too
    high, and halving one that has come back slows a healthy run.
    """

    name: ClassVar[str] = "cap_lr"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SCALE_LR})
    max_lr: float
    first_step: int
    hold_steps: int | None = None
    ramp_steps: int = 0

    def __post_init__(self) -> None:
        LRCap(
            max_lr=self.max_lr,
            first_step=self.first_step,
            hold_steps=self.hold_steps,
            ramp_steps=self.ramp_steps,
        )

    def apply(self, control: TrainingControl) -> str:
        return control.cap_lr(self.max_lr, self.first_step, self.hold_steps, self.ramp_steps)
