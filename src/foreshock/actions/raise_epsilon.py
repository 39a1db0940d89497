"""Raise the optimizer's eps."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl
from foreshock.core.override import RaisedEpsilon


@dataclass(frozen=True, kw_only=True)
class RaiseEpsilon(Action):
    """Set the optimizer's eps to `max(eps * factor, least)` around each step.

    Where second moments have become smaller than eps, updates shrink towards those of plain
    momentum; elsewhere nothing changes. The optimizer's groups have their own eps again after
    each step, so that no snapshot ever holds the raised one. Of several the largest counts.

    Args:
        first_step: first step that it holds for.
        factor: multiplier, at least 1.
        least: smallest eps afterwards; for an optimizer whose own is known.
        hold_steps: how many steps it holds; None is until the end.

    Raises:
        ConfigError: an argument is out of its range, or eps would stay as it is.

    Reference: Molybog et al. 2023, "A Theory on Adam Instability in Large-Scale Machine
    Learning": updates of layers with vanishing gradients act in concert when eps is small.
    """

    name: ClassVar[str] = "raise_epsilon"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.RAISE_EPSILON})
    first_step: int
    factor: float = 1.0
    least: float = 0.0
    hold_steps: int | None = None

    def __post_init__(self) -> None:
        RaisedEpsilon(
            factor=self.factor,
            least=self.least,
            first_step=self.first_step,
            hold_steps=self.hold_steps,
        )

    def apply(self, control: TrainingControl) -> str:
        return control.raise_epsilon(self.factor, self.least, self.first_step, self.hold_steps)
