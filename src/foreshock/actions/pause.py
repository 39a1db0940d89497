"""Wait for a person."""

import math
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl
from foreshock.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Pause(Action):
    """Wait between two steps until a person lifts it, and halt when none has in time.

    A file `resume.now` in the run directory lifts it: `touch RUN/resume.now`. Nothing else
    happens meanwhile. A process that is killed while it waits waits on when the run is
    resumed, for the time that is left. In a plan it stands last.

    Args:
        reason: what the person is to look at.
        timeout_secs: how long to wait before the run is halted. Longer keeps machines idle,
            shorter asks for someone awake.

    Raises:
        ConfigError: the time-out is negative or not finite.

    No source for an hour: our choice, because a job that is on call is answered within one.
    """

    name: ClassVar[str] = "pause"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.PAUSE})
    reason: str
    timeout_secs: float = 3600.0

    def __post_init__(self) -> None:
        if not 0 <= self.timeout_secs < math.inf:
            raise ConfigError(
                f"Pause.timeout_secs is {self.timeout_secs}; it must be 0 or more, and finite"
            )

    def apply(self, control: TrainingControl) -> str:
        return control.pause(self.reason, self.timeout_secs)
