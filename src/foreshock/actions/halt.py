"""Stop the run and hand it over."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl


@dataclass(frozen=True, kw_only=True)
class Halt(Action):
    """Stop the run, leaving a handover note that says what was tried and what is left.

    Args:
        note: the note, for a person.
    """

    name: ClassVar[str] = "halt"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.HALT})
    note: str

    def apply(self, control: TrainingControl) -> str:
        return control.halt(self.note)
