"""Lower the learning rate."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl


@dataclass(frozen=True, kw_only=True)
class ScaleLR(Action):
    """Multiply the learning rate by `factor` from `first_step` on.

    An override around the optimizer's step: the scheduler and the snapshots never see
    it, so that neither undoes it.

    Args:
        factor: multiplier, above 0.
        first_step: first step that it holds for.
    """

    name: ClassVar[str] = "scale_lr"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SCALE_LR})
    factor: float
    first_step: int

    def apply(self, control: TrainingControl) -> str:
        return control.scale_lr(self.factor, self.first_step)
