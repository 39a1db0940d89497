"""Go back to a healthy snapshot."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl


@dataclass(frozen=True, kw_only=True)
class Rollback(Action):
    """Take the whole rewound state back: weights, optimizer, schedule, scaler, RNG, data.

    Args:
        snapshot_id: the snapshot that was chosen.
        step: its step. If the snapshot is gone when the plan is carried out (it was in
            the memory of a process that died), the newest durable one of at most this
            step serves: from there the same steps are trained again.
    """

    name: ClassVar[str] = "rollback"
    needs: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.REWIND_STATE, Capability.REWIND_DATA}
    )
    snapshot_id: str
    step: int

    def apply(self, control: TrainingControl) -> str:
        return control.rollback(self.snapshot_id, self.step)
