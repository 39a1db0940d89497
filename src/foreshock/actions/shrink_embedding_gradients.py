"""Shrink the gradients of the embeddings."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl
from foreshock.core.override import EmbeddingFactor


@dataclass(frozen=True, kw_only=True)
class ShrinkEmbeddingGradients(Action):
    """Multiply the gradients of embeddings by `factor`, before the clip.

    The gate still judges, and signals still report, the norm of the gradients as they came;
    the clip takes that of the shrunk ones. A weight that is tied to the head is shrunk as a
    whole, unlike in GLM-130B, where only the embedding's share is.

    With Adam a constant factor is divided out again once the second moments have followed,
    in about 1/(1 - beta2) steps: until then updates of embeddings are smaller, and after it
    ends they are larger for as long, which is what the ramp is for. What stays for good is a
    smaller share in the clipped norm.

    Args:
        first_step: first step that it holds for.
        factor: multiplier (GLM-130B's alpha), above 0 and at most 1.
        hold_steps: how many steps it holds in full; None is until the end.
        ramp_steps: over how many it goes back to 1, in equal parts.

    Raises:
        ConfigError: an argument is out of its range.

    Reference: Zeng et al. 2022, GLM-130B: alpha = 0.1; the log of its training raised it to 1
    over 500 steps, and lowered it again after two spikes.
    """

    name: ClassVar[str] = "shrink_embedding_gradients"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SHRINK_EMBEDDING_GRADIENTS})
    first_step: int
    factor: float = 0.1
    hold_steps: int | None = None
    ramp_steps: int = 500

    def __post_init__(self) -> None:
        EmbeddingFactor(
            factor=self.factor,
            first_step=self.first_step,
            hold_steps=self.hold_steps,
            ramp_steps=self.ramp_steps,
        )

    def apply(self, control: TrainingControl) -> str:
        return control.shrink_embedding_gradients(
            self.factor, self.first_step, self.hold_steps, self.ramp_steps
        )
