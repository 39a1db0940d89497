"""Loss on data that is never trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from foreshock.core.errors import ProgramError
from foreshock.core.probe import Probe
from foreshock.core.program import as_loss


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss(Probe):
    """The program's own loss on held-out batches, one value a batch.

    Args:
        batches: a sequence of what `loss` accepts; several small ones tell noise from change better
            than a large one.
        loss: `(model, batch) -> tensor or Loss`.
        text: what kind of text they hold, where there are several such probes ("code",
            "mathematics", "long context"); their capability is then `held_out_loss/code`.

    >>> HeldOutLoss(batches=[2.0, 4.0], loss=lambda model, batch: batch / 2).measure(None)
    [1.0, 2.0]
    """

    name: ClassVar[str] = "held_out_loss"
    strengthened_by: ClassVar[str] = "the text that is held out"
    batches: Sequence[Any]
    loss: Callable[[Any, Any], Any]
    text: str = ""

    def __post_init__(self) -> None:
        if len(self.batches) == 0:
            raise ProgramError("held-out loss needs at least one batch, got none")

    @property
    def capability(self) -> str:
        return f"{self.name}/{self.text}" if self.text else self.name

    def measure(self, model: Any) -> list[float]:
        return [self._value(model, place) for place in range(len(self.batches))]

    def _value(self, model: Any, place: int) -> float:
        try:
            loss = self.loss(model, self.batches[place])
            return float(as_loss(loss).total)
        except Exception as error:
            raise ProgramError(
                f"held-out batch {place}: the program's loss raised {type(error).__name__}: {error}"
            ) from error
