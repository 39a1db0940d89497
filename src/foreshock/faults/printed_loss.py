"""A loss that is told wrong, and differentiated right."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np

from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Loss, Program, as_loss

Mode = Literal["multiplied", "lost"]
MODES: tuple[Mode, ...] = ("multiplied", "lost")


@final
@dataclass(frozen=True, kw_only=True)
class PrintedLoss(ProgramFault):
    """Tell a number times the loss; its gradient stays as it is.

    - `multiplied`: by `count ** intensity`, as of a sum over ranks that is not divided again.
    - `lost`: by `1 - intensity`; at 1 the loss is told as exactly 0.

    Nothing of the training changes, bit for bit. In training only.

    Args:
        mode: which of the two.
        intensity: 0 to 1, as above.
        count: what the sum is over, above 1.

    Raises:
        ConfigError: an argument is not allowed.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: weights are those of
    the twin, bit for bit. `multiplied` alarms in every step by its loss alone (at 0.65); `lost`
    raises no alarm, since no detector takes a lower loss for trouble.

    No source: our choice, after logs that sum where they should average, or print 0.0.
    """

    name: ClassVar[str] = "printed_loss"
    cause: ClassVar[str] = "logging_artefact"

    mode: Mode = "multiplied"
    intensity: float = 1.0
    count: int = 8

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"PrintedLoss.mode is {self.mode!r}; allowed: {', '.join(MODES)}.")
        self.require_share("intensity")
        if self.count < 2:
            raise ConfigError(f"PrintedLoss.count is {self.count}; it must be above 1.")

    @property
    def factor(self) -> float:
        """What is told, over what is."""
        if self.mode == "lost":
            return 1.0 - self.intensity
        return float(self.count**self.intensity)

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        factor = self.factor

        def told(model: Any, batch: Any) -> Any:
            loss = program.loss(model, batch)
            if not model.training:
                return loss
            total = as_loss(loss).total
            total = total + (factor - 1.0) * total.detach()
            return replace(loss, total=total) if isinstance(loss, Loss) else total

        return replace(program, loss=told), f"the loss is told as {factor:.3g} times itself"
