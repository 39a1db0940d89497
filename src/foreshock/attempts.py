"""Attempts: where the run stands, its snapshots, and how time goes back."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from foreshock.checkpoints import Checkpoints
from foreshock.core.case import BatchFinding
from foreshock.core.errors import ForeshockError, SnapshotError
from foreshock.core.incident import IncidentBook
from foreshock.core.reading import from_json_whole
from foreshock.core.snapshot import Health, SnapshotRef, in_lineage
from foreshock.data.findings import batch_findings
from foreshock.data.stream import Stream
from foreshock.journal import Journal
from foreshock.monitor import Monitor
from foreshock.observation import Observation
from foreshock.recipes import Cadence
from foreshock.run_state import Restored, RunState
from foreshock.snapshots.codec import DAMAGE
from foreshock.snapshots.labels import Objection

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
        clock: seconds, for the cadence by minutes; None for none.
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
        clock: Callable[[], float] | None = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        self.progress = progress
        self._model = model
        self.state = state
        self._journal = journal
        self._monitor = monitor
        self._observation = observation
        self._optimizer = optimizer
        self._stream = stream
        self._cadence = cadence
        self._rollbacks: list[tuple[int, int]] = []
        self._checkpoints = Checkpoints(
            state,
            journal,
            cadence,
            alive=lambda ref: in_lineage(ref, self._rollbacks),
            record=self._record,
            clock=clock,
        )
        self._begun = False
        for record in journal.records:
            self._apply(record)

    @property
    def position(self) -> int:
        """Watermark of the stream; 0 for a foreign loader."""
        return self._stream.position if self._stream is not None else 0

    def position_after(self, step: int) -> int:
        """Watermark of the stream after one of the last steps."""
        # A step may consist of samples that were brought back, which stand before its own place.
        before = [places[-1] + 1 for one, places in self.progress.recent if one <= step]
        return max(before, default=self.position)

    def findings(self, first: int, last: int) -> Sequence[BatchFinding] | None:
        """What stands out in the samples of these steps, against those of the steps before."""
        if self._stream is None:
            return None
        recent = self.progress.recent
        window = [p for step, positions in recent if first <= step <= last for p in positions]
        reference = [p for step, positions in recent if step < first for p in positions]
        return batch_findings(self._stream, window, reference)

    def refs(self) -> list[SnapshotRef]:
        """The snapshots of the run's lineage, those that would have to be made anew included.

        Each of the latter tells from which older one that is there it would be trained.
        """
        there = {ref.step for ref in self.held()}
        found: list[SnapshotRef] = []
        for ref in self.state.refs(self._rollbacks):
            begun = max((step for step in there if step <= ref.step), default=None)
            if begun is not None:
                made = ref.step in there
                found.append(ref if made else replace(ref, trained_from=begun))
        return found

    def held(self) -> list[SnapshotRef]:
        """Those of them that are there, in memory or on disk."""
        return self.state.held(self._rollbacks)

    def has_begun(self) -> bool:
        """Whether the run has ever had a durable snapshot."""
        recorded = any(record["kind"] == "snapshot" for record in self._journal.records)
        return recorded or self.state.has_any()

    def begin(self, snapshot_id: str | None = None) -> None:
        """Begin a new attempt at the present step, with files of its own.

        Args:
            snapshot_id: what was gone back to, if anything was.
        """
        progress = self.progress
        progress.attempt = self._journal.last_attempt + 1
        gone_back_to: dict[str, Any] = {} if snapshot_id is None else {"snapshot": snapshot_id}
        self._record("attempt_started", durable=True, **gone_back_to)
        self._journal.open_readings(progress.attempt, self._observation.series)
        self._journal.open_provenance(progress.attempt)

    # ---- going back -----------------------------------------------------------------

    def go_back(
        self, *, snapshot_id: str | None = None, at_most_step: int | None = None
    ) -> Restored:
        """Restore a snapshot (see `RunState.restore`) and begin a new attempt from it.

        One that cannot be used is passed over with its reason, journalled; one whose files are
        damaged is marked there, and never read again.

        Raises:
            SnapshotError: none could be restored.
        """
        return self._go_back(snapshot_id, at_most_step, only=False)

    def go_back_to(self, snapshot_id: str) -> Restored:
        """Go back to a snapshot that a person has named, whatever its health or its marks.

        Journalled before it is done. No other is taken in its place.

        Raises:
            SnapshotError: there is no such snapshot, a rollback has undone it, or it is damaged.
        """
        self._checkpoints.finish(wait=True)
        self.state.shelf.bad.discard(snapshot_id)
        refs, objections = self.state.shelf.refs()
        known = {ref.id: ref for ref in [*refs, *self.state.in_memory()]}
        if snapshot_id not in known:
            why = next((f": {one}" for one in objections if snapshot_id in one), "")
            names = ", ".join(sorted(known)) or "none"
            raise SnapshotError(f"there is no snapshot {snapshot_id!r:.80}{why}; there are {names}")
        ref = known[snapshot_id]
        if not in_lineage(ref, self._rollbacks):
            raise SnapshotError(
                f"snapshot {snapshot_id} was undone: the run went back to before step {ref.step} "
                "since; choose one of its present past (`foreshock snapshots` lists them)"
            )
        self._record("snapshot_chosen", snapshot=snapshot_id, target_step=ref.step)
        return self._go_back(snapshot_id, None, only=True)

    def _go_back(
        self, snapshot_id: str | None, at_most_step: int | None, *, only: bool
    ) -> Restored:
        tried: list[str] = []
        troubles: list[str] = []
        while True:
            try:
                restored = self.state.restore(
                    self._rollbacks,
                    snapshot_id=snapshot_id,
                    at_most_step=at_most_step,
                    only=only,
                    but=tried,
                )
            except SnapshotError as error:
                raise SnapshotError("; ".join([*troubles, str(error)])) from error
            for reason in restored.passed_over:
                self._pass_over(reason)
            ref = restored.ref
            self._observation.forget(ref.step)
            try:
                recent = self._watch_from(restored.watching)
                break
            except (ForeshockError, *DAMAGE) as error:
                tried.append(ref.id)
                trouble = (
                    f"snapshot {ref.id}: what it remembers of the signals is damaged "
                    f"({error!r:.200})"
                )
                troubles.append(trouble)
                self._pass_over(Objection(ref.id, trouble))
        self._optimizer.zero_grad(set_to_none=True)
        self.progress.step = ref.step
        self.progress.recent.clear()
        self.progress.recent.extend(recent)
        self.state.rewound_to(ref.step)
        self.begin(ref.id)
        if restored.num_ranks is not None:
            self._other_ranks(restored.num_ranks)
        if not self._begun:
            self._checkpoints.taken_up(ref)
        self._begun = True
        if snapshot_id is not None and not ref.durable:
            self._checkpoints.keep(ref)
        return restored

    def _other_ranks(self, before: int) -> None:
        """Say what of each rank's own could not simply go on."""
        now = self.state.num_ranks
        new = f"ranks {before} to {now - 1} are new and make theirs from that of rank 0 and their"
        gone = f"that of ranks {now} to {before - 1} is left out"
        why = f"{new} number" if now > before else gone
        self._record("ranks_changed", before=before, now=now, why=why)
        self._journal.warn(
            f"the run goes on on {now} ranks instead of {before}. Of what each rank has of its own "
            f"(random generators), {why}"
        )

    def _pass_over(self, reason: Objection) -> None:
        self._record(
            "snapshot_passed_over", reason=str(reason), snapshot=reason.id, bad=reason.lasting
        )

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

    def look_at(
        self, refs: Sequence[SnapshotRef], look: Callable[[], Any]
    ) -> list[tuple[SnapshotRef, Any]]:
        """Look at earlier states; the present one is put back, bit-exactly. See `visit`."""
        return self.state.visit(refs, look)

    # ---- snapshots ------------------------------------------------------------------

    def snapshot_is_due(self) -> bool:
        """Whether the cadence asks for a snapshot of the present step that is not there yet.

        Called between steps; a write that has ended meanwhile is recorded, on several ranks at
        the steps at which they look for it.
        """
        if self._stream is None:
            return False
        step, every = self.progress.step, self._cadence.memory_steps
        durable = bool(self._checkpoints.why_due(step))
        if self._checkpoints.looks(step):
            self._checkpoints.finish()
            if not durable:
                self._checkpoints.write_kept()
        if not durable and not (every and step % every == 0):
            return False
        return not self._have(self.held(), durable=durable)

    def take_snapshot(
        self, book: IncidentBook, *, durable: bool | None = None, required: bool = False
    ) -> None:
        """Take a snapshot of the present step, if it is not there yet.

        A disk that fails is warned of and journalled: the training goes on. A durable one is
        written while it does, where the cadence says so; if the one before is still being
        written, that is journalled and this one stays in memory.

        Args:
            book: whose open incident makes a snapshot one that is not gone back to.
            durable: on disk too, and waited for; by default what the cadence asks for.
            required: fail instead, because nothing has been lost yet.

        Raises:
            RunDirError: `required`, and the disk did not take it.
        """
        if self._stream is None:
            return
        step, wait = self.progress.step, bool(durable)
        self._checkpoints.finish(wait=wait)
        why = self._checkpoints.why_due(step) if durable is None else ""
        durable = durable or bool(why)
        held = self.held()
        if self._have(held, durable=durable):
            return
        health = self._health(book)
        if not durable and health.healthy and self._checkpoints.owes_healthy(held):
            durable, why = True, "health"
        if durable:
            self._checkpoints.announce(step, why)
        ref = self.state.take(
            step=step,
            attempt=self.progress.attempt,
            position=self.position,
            health=health,
            watching=self._watching(),
        )
        self._begun = True
        if durable:
            self._checkpoints.write(ref, wait=wait, required=required)

    def finish_writing(self) -> None:
        """Wait for the snapshot that is being written, on every rank, and record it."""
        self._checkpoints.finish(wait=True)

    def close(self) -> None:
        """Wait for the snapshot that is being written, and record it."""
        self._checkpoints.close()

    def _health(self, book: IncidentBook) -> Health:
        step = self.progress.step
        concerns = [
            f"incident {incident.id} was not yet verified"
            for incident in book.incidents
            if incident.covers(step)
        ]
        if not self._checkpoints.on_cadence(step):
            # An uninterrupted run does not have it: a rollback must not aim at it either.
            concerns.append("taken off the cadence, where the run was stopped")
        buffers = () if self._model is None else tuple(self._model.buffers())
        finite = self.state.optimizer_is_finite(self._optimizer, buffers)
        if not finite:
            concerns.append("the optimizer's state holds a NaN or an Inf, or a buffer a NaN")
        return self._monitor.health(concerns, {"moments_finite": float(finite)})

    def _have(self, held: Sequence[SnapshotRef], *, durable: bool) -> bool:
        step = self.progress.step
        return any(ref.step == step and (ref.durable or not durable) for ref in held)

    def _watching(self) -> dict[str, Any]:
        return {
            "monitor": self._monitor.to_tree(),
            "signals": self._observation.state_dict(),
            "recent": [[step, list(positions)] for step, positions in self.progress.recent],
        }

    def _record(self, kind: str, *, durable: bool = True, **fields: Any) -> None:
        progress = self.progress
        record = self._journal.write(
            kind, attempt=progress.attempt, step=progress.step, durable=durable, **fields
        )
        self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the journal: what it says holds for every later process."""
        if record["kind"] == "attempt_started":
            self._rollbacks.append((record["attempt"], record["step"]))
        self._checkpoints.apply(record)
