"""What policy decides on, as a value."""

from collections.abc import Sequence
from dataclasses import dataclass

from foreshock.core.cause import Diagnosis
from foreshock.core.incident import Incident, PlanRecord
from foreshock.core.snapshot import SnapshotRef


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What policy decides on.

    Attributes:
        step: last step that has been read.
        diagnosis: of the present episode.
        must_act: the state itself is broken (`pressing`), or a probe found harm.
        only_gradients: nothing but gradient signals has alarmed, so that the gate alone
            can keep the run whole.
        consecutive_skips: updates skipped in a row.
        handled_by_scaler: the only non-finite values are gradients, and a loss scaler
            deals with them.
        gradient_limit: the gradient norm beyond which its rule alarms, or None.
        incident: the open incident, or None.
        snapshots: of the run's lineage.
        position: watermark of the stream up to which data may have had a part in it.
        lag_steps: later steps that are under way already, out of a lowered gate's reach.
        num_rollbacks: in the whole run so far.
        earlier: the run's incidents before the open one, in order.
        window: raw positions `[start, stop)` consumed from the onset to there, or None.
        num_samples: raw positions that the stream has in all, or None if it has no end.
    """

    step: int
    diagnosis: Diagnosis
    must_act: bool
    only_gradients: bool
    consecutive_skips: int
    handled_by_scaler: bool
    gradient_limit: float | None
    incident: Incident | None
    snapshots: Sequence[SnapshotRef]
    position: int
    num_rollbacks: int
    lag_steps: int = 0
    earlier: Sequence[Incident] = ()
    window: tuple[int, int] | None = None
    num_samples: int | None = None

    @property
    def onset_step(self) -> int:
        """The onset of the incident, or of the episode where none is open."""
        onset = self.diagnosis.onset_step
        return onset if self.incident is None else min(onset, self.incident.onset_step)

    @property
    def tried(self) -> Sequence[PlanRecord]:
        """The plans of the open incident: all of them have failed, or it would be closed."""
        return () if self.incident is None else self.incident.plans
