"""Labels that belong to the token after the one that they should be of."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from foreshock.calls import Answered, InTraining, leading
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class ShiftedLabels(ProgramFault):
    """Move targets on by one: each position learns the token after the next.

    It works on the targets that the loss hands to `torch.nn.functional.cross_entropy`, in their
    order: the first `ceil(intensity * N)` of N have the label of their successor, as if that
    share of the batch came from a loader that shifts what the model shifts too. In training only.

    Args:
        intensity: 0 to 1, share of the labels that are shifted.

    Raises:
        ConfigError: the intensity is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: +0.46, +0.84 and +1.25
    in the first five steps, +0.4, +0.6 and +0.6 to the end; held-out loss +0.13, +0.32 and
    +0.72 after 80. The loss alarms in the second step at 0.65, in the first at 1.

    No source: our choice; labels that are shifted by the collator and by the model.
    """

    name: ClassVar[str] = "shifted_labels"
    cause: ClassVar[str] = "masking_or_labels"

    intensity: float = 1.0

    def __post_init__(self) -> None:
        self.require_share("intensity")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        loss = InTraining(program.loss, lambda _: Answered(cross_entropy, self._shifted))
        said = f"{self.intensity:.0%} of the labels are those of the token after the next"
        return replace(program, loss=loss), said

    def _shifted(self, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Cross-entropy of which the first labels are those that come one later."""
        logits, target, *rest = leading(args, given, "input", "target")
        flat = target.flatten()
        num = math.ceil(self.intensity * flat.numel())
        moved = torch.cat((flat.roll(-1)[:num], flat[num:])).view(target.shape)
        return cross_entropy(logits, moved, *rest, **given)
