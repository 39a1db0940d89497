"""Skip the updates whose gradient is too large."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl


@dataclass(frozen=True, kw_only=True)
class SkipUpdate(Action):
    """Lower the gate: updates with a gradient norm above `limit` are not made.

    A skipped step consumes its batch; weights, moments and update counts stay
    bit-identical.

    Args:
        limit: largest gradient norm that is committed, before clipping.
        first_step: first step that it holds for.
        last_step: last step that it holds for.
    """

    name: ClassVar[str] = "skip_update"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SKIP_UPDATE})
    limit: float
    first_step: int
    last_step: int

    def apply(self, control: TrainingControl) -> str:
        return control.limit_gate(self.limit, self.first_step, self.last_step)
