"""Leave a bad place by a tiny, seeded step in a random direction."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl
from foreshock.core.override import WeightNoise


@dataclass(frozen=True, kw_only=True)
class PerturbWeights(Action):
    """Begin `first_step` with normal noise on every trained weight.

    Its standard deviation is `relative_std` times the RMS of the tensor that it is added to.
    The seed follows from the plan and the action, so that every rank and every replay of the
    step adds the same; a tensor of zeros stays one. Noise below the resolution of the
    weights' dtype (2**-8 of each weight in bfloat16) moves some weights by one unit, others
    not at all.

    Args:
        first_step: the step that begins so; that after the snapshot gone back to, usually.
        relative_std: noise over weight, between 0 and 1. Larger leads further away, and costs
            loss at once.

    Raises:
        ConfigError: an argument is out of its range.

    No source: our choice. A thousandth is far below what a step of training moves within a
    hundred steps, and far above rounding, so that the same data takes another path.
    """

    name: ClassVar[str] = "perturb_weights"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.PERTURB_WEIGHTS})
    first_step: int
    relative_std: float = 1e-3

    def __post_init__(self) -> None:
        WeightNoise(relative_std=self.relative_std, first_step=self.first_step, seed=0)

    def apply(self, control: TrainingControl) -> str:
        return control.perturb_weights(self.relative_std, self.first_step)
