"""Lower the optimizer's beta2."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl
from foreshock.core.override import LoweredBeta2


@dataclass(frozen=True, kw_only=True)
class LowerBeta2(Action):
    """Let the optimizer's beta2 be at most `value` around each step.

    The second moment then follows gradients that grow within 1/(1 - value) steps, which is
    what stale ones miss before a spike. The groups have their own beta2 again after each
    step, so that no snapshot ever holds the lowered one. Of several the lowest counts.

    Early in a run it does harm: with fewer than some 3/(1 - beta2) updates behind it, the
    bias correction of a lower beta2 takes the second moment for larger than it is, and updates
    are up to sqrt((1 - value**t) / (1 - beta2**t)) times too large.

    Args:
        value: largest beta2. Lower follows faster and is noisier.
        first_step: first step that it holds for.
        hold_steps: how many steps it holds; None is until the end.

    Raises:
        ConfigError: an argument is out of its range.

    Reference: Zhang et al. 2022, OPT-175B (0.98 to 0.95 in mid-run); Wortsman et al. 2023,
    arXiv:2304.13013 (spikes follow when the second moment lags behind).
    """

    name: ClassVar[str] = "lower_beta2"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOWER_BETA2})
    first_step: int
    value: float = 0.95
    hold_steps: int | None = None

    def __post_init__(self) -> None:
        LoweredBeta2(value=self.value, first_step=self.first_step, hold_steps=self.hold_steps)

    def apply(self, control: TrainingControl) -> str:
        return control.lower_beta2(self.value, self.first_step, self.hold_steps)
