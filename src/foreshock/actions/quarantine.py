"""Set a window of the data aside."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl


@dataclass(frozen=True, kw_only=True)
class Quarantine(Action):
    """Set aside the samples at raw stream positions `start` to `stop - 1`.

    They are skipped from now on, in later repeats too, and can be given back. A
    quarantine is never rewound.

    Args:
        start: first raw position.
        stop: one past the last.
        reason: why, for the ledger.
    """

    name: ClassVar[str] = "quarantine"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.QUARANTINE_DATA})
    start: int
    stop: int
    reason: str

    def apply(self, control: TrainingControl) -> str:
        return control.quarantine(self.start, self.stop, self.reason)
