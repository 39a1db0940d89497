"""Clip gradients to a smaller norm."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl
from foreshock.core.override import ClipLimit


@dataclass(frozen=True, kw_only=True)
class TightenClip(Action):
    """Clip gradients to `max_norm` from `first_step` on; a loop without a clip begins to clip.

    Where the loop's own clip is lower it stays. The clip after `hold_steps` is
    `1 / (w / max_norm + (1 - w) / own)` with w falling linearly from 1 to 0, which has an
    end for a loop without a clip of its own (own = ∞) too. Of several the smallest counts.

    With Adam a clip that acts at every step is mostly divided out again; what it takes away
    is the weight of single large gradients in the moments.

    Args:
        max_norm: largest gradient norm. Smaller takes more of rare batches away.
        first_step: first step that it holds for.
        hold_steps: how many steps it holds in full; None is until the end.
        ramp_steps: over how many it is taken back; 0 is at once.

    Raises:
        ConfigError: an argument is out of its range.

    Reference: Zhang et al. 2022, OPT-175B: clipping lowered from 1.0 to 0.3 in mid-run.
    """

    name: ClassVar[str] = "tighten_clip"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.TIGHTEN_CLIP})
    first_step: int
    max_norm: float = 0.3
    hold_steps: int | None = None
    ramp_steps: int = 0

    def __post_init__(self) -> None:
        ClipLimit(
            max_norm=self.max_norm,
            first_step=self.first_step,
            hold_steps=self.hold_steps,
            ramp_steps=self.ramp_steps,
        )

    def apply(self, control: TrainingControl) -> str:
        return control.tighten_clip(
            self.max_norm, self.first_step, self.hold_steps, self.ramp_steps
        )
