"""Attempts: where the run stands, its snapshots, and how time goes back."""

import errno
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from foreshock.core.case import BatchFinding
from foreshock.core.errors import ForeshockError, RunDirError, SnapshotError
from foreshock.core.incident import IncidentBook
from foreshock.core.reading import from_json_whole
from foreshock.core.snapshot import SnapshotRef
from foreshock.data.findings import batch_findings
from foreshock.data.stream import Stream
from foreshock.journal import Journal
from foreshock.monitor import Monitor
from foreshock.observation import Observation
from foreshock.recipes import Cadence
from foreshock.run_state import Restored, RunState
from foreshock.snapshots.codec import DAMAGE

_RECENT_STEPS = 200


@dataclass
class Progress:
    """Where the run stands.

    Attributes:
        step: optimizer steps taken, skipped ones included.
        attempt: rises at every rollback and every resume.
        recent: (step, raw stream positions) of the last steps, for diagnoses.
    """

    step: int = 0
    attempt: int = 0
    recent: "deque[tuple[int, tuple[int, ...]]]" = field(
        default_factory=lambda: deque(maxlen=_RECENT_STEPS)
    )


class Attempts:
    """Takes snapshots, goes back to them, and numbers the attempts.

    Args:
        progress: where the run stands; changed in place.
        state: the rewound state.
        journal: where attempts and snapshots are recorded.
        monitor: rewound with the rest.
        observation: likewise.
        optimizer: whose moments are checked for a snapshot's health.
        stream: whose watermark a snapshot carries; None for a foreign loader.
        cadence: when snapshots are due.
    """

    def __init__(
        self,
        progress: Progress,
        state: RunState,
        journal: Journal,
        *,
        monitor: Monitor,
        observation: Observation,
        optimizer: torch.optim.Optimizer,
        stream: Stream | None,
        cadence: Cadence,
    ) -> None:
        self.progress = progress
        self.state = state
        self._journal = journal
        self._monitor = monitor
        self._observation = observation
        self._optimizer = optimizer
        self._stream = stream
        self._cadence = cadence
        self._rollbacks = [
            (record["attempt"], record["step"])
            for record in journal.records
            if record["kind"] == "attempt_started"
        ]

    @property
    def position(self) -> int:
        """Watermark of the stream; 0 for a foreign loader."""
        return self._stream.position if self._stream is not None else 0

    def position_after(self, step: int) -> int:
        """Watermark of the stream after one of the last steps."""
        found = [positions for one, positions in self.progress.recent if one == step]
        return found[-1][-1] + 1 if found else self.position

    def findings(self, first: int, last: int) -> Sequence[BatchFinding] | None:
        """What stands out in the samples of these steps, against those of the steps before."""
        if self._stream is None:
            return None
        recent = self.progress.recent
        window = [p for step, positions in recent if first <= step <= last for p in positions]
        reference = [p for step, positions in recent if step < first for p in positions]
        return batch_findings(self._stream, window, reference)

    def refs(self) -> list[SnapshotRef]:
        """The snapshots of the run's lineage, those that would have to be made anew included."""
        return self.state.refs(self._rollbacks)

    def has_begun(self) -> bool:
        """Whether the run has ever had a durable snapshot."""
        recorded = any(record["kind"] == "snapshot" for record in self._journal.records)
        return recorded or self.state.has_any()

    def begin(self) -> None:
        """Begin a new attempt at the present step, with files of its own."""
        progress = self.progress
        progress.attempt = self._journal.last_attempt + 1
        self._journal.write("attempt_started", attempt=progress.attempt, step=progress.step)
        self._rollbacks.append((progress.attempt, progress.step))
        self._journal.open_readings(progress.attempt, self._observation.series)
        self._journal.open_provenance(progress.attempt)

    def go_back(
        self, *, snapshot_id: str | None = None, at_most_step: int | None = None
    ) -> Restored:
        """Restore a snapshot (see `RunState.restore`) and begin a new attempt from it.

        Raises:
            SnapshotError: none could be restored.
        """
        restored = self.state.restore(
            self._rollbacks, snapshot_id=snapshot_id, at_most_step=at_most_step
        )
        for reason in restored.passed_over:
            self._journal.write(
                "snapshot_passed_over",
                attempt=self.progress.attempt,
                step=self.progress.step,
                reason=reason,
            )
        self._observation.forget(restored.ref.step)
        try:
            recent = self._watch_from(restored.watching)
        except (ForeshockError, *DAMAGE) as error:
            raise SnapshotError(
                f"snapshot {restored.ref.id}: what it remembers of the signals is damaged "
                f"({error!r:.200}); remove this snapshot, and an older one is gone back to"
            ) from error
        self._optimizer.zero_grad(set_to_none=True)
        self.progress.step = restored.ref.step
        self.progress.recent.clear()
        self.progress.recent.extend(recent)
        self.state.rewound_to(restored.ref.step)
        self.begin()
        return restored

    def _watch_from(self, watching: dict[str, Any]) -> list[tuple[int, tuple[int, ...]]]:
        """Take back what watched; return the positions of the last steps."""
        recent = [
            (from_json_whole(step), tuple(from_json_whole(one) for one in positions))
            for step, positions in watching["recent"]
        ]
        if not all(positions for _, positions in recent):
            raise ValueError("a step without a position")
        self._observation.load_state_dict(watching["signals"])
        self._monitor.load_tree(watching["monitor"])
        return recent

    def look_at(self, refs: Sequence[SnapshotRef], look: Callable[[], Any]) -> list[Any]:
        """Look at earlier states in memory; the present one is put back, bit-exactly."""
        return self.state.visit(refs, look)

    def snapshot_is_due(self) -> bool:
        """Whether the cadence asks for a snapshot of the present step that is not there yet."""
        if self._stream is None:
            return False
        step, cadence = self.progress.step, self._cadence
        durable = step % cadence.disk_steps == 0
        if not durable and not (cadence.memory_steps and step % cadence.memory_steps == 0):
            return False
        return not self._have(durable=durable)

    def take_snapshot(
        self, book: IncidentBook, *, durable: bool | None = None, required: bool = False
    ) -> None:
        """Take a snapshot of the present step, if it is not there yet.

        A disk that fails is warned of and journalled: the training goes on.

        Args:
            book: whose open incident makes a snapshot one that is not gone back to.
            durable: on disk too; by default what the cadence asks for.
            required: fail instead, because nothing has been lost yet.

        Raises:
            RunDirError: `required`, and the disk did not take it.
        """
        if self._stream is None:
            return
        step, attempt = self.progress.step, self.progress.attempt
        if durable is None:
            durable = step % self._cadence.disk_steps == 0
        if self._have(durable=durable):
            return
        concerns = [
            f"incident {incident.id} was not yet verified"
            for incident in book.incidents
            if incident.covers(step)
        ]
        if not self._on_cadence(step):
            # An uninterrupted run does not have it: a rollback must not aim at it either.
            concerns.append("taken off the cadence, where the run was stopped")
        if not self.state.optimizer_is_finite(self._optimizer):
            concerns.append("the optimizer's state holds a NaN or an Inf")
        try:
            if durable:
                self._journal.sync()  # a resume needs every decision up to where it begins
            num_waiting = self._journal.backlog
            ref = self.state.take(
                step=step,
                attempt=attempt,
                position=self.position,
                health=self._monitor.health(concerns),
                watching=self._watching(),
                durable=durable and not num_waiting,
            )
            if durable and num_waiting:
                text = f"the disk has not taken {num_waiting} decisions that come before it"
                raise OSError(errno.EIO, text)
            if durable:
                self._journal.write("snapshot", attempt=attempt, step=step, snapshot=ref.to_json())
                self.state.rotate(self._rollbacks)
        except OSError as error:
            if required:
                raise RunDirError(
                    f"the first snapshot cannot be written ({error.strerror or error}): free some "
                    "space, or choose another run directory"
                ) from error
            self._journal.write(
                "snapshot_failed", attempt=attempt, step=step, reason=str(error), durable=False
            )
            self._journal.warn(
                f"step {step}: a snapshot could not be written ({error.strerror or error}); "
                "training goes on, and more progress is at risk until the disk takes one"
            )

    def _on_cadence(self, step: int) -> bool:
        every = [self._cadence.disk_steps, self._cadence.memory_steps]
        return any(steps and step % steps == 0 for steps in every)

    def _have(self, *, durable: bool) -> bool:
        step = self.progress.step
        held = self.state.held(self._rollbacks)
        return any(ref.step == step and (ref.durable or not durable) for ref in held)

    def _watching(self) -> dict[str, Any]:
        return {
            "monitor": self._monitor.to_tree(),
            "signals": self._observation.state_dict(),
            "recent": [[step, list(positions)] for step, positions in self.progress.recent],
        }
