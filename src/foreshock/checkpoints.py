"""Durable snapshots of a run: when they are due, written, and dropped; all of it journalled."""

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from foreshock.core.errors import RunDirError, SnapshotError
from foreshock.core.retention import why_due
from foreshock.core.snapshot import SnapshotRef
from foreshock.journal import Journal
from foreshock.recipes import Cadence
from foreshock.run_state import RunState

_AHEAD: Final = 2
"""Durable snapshots that there should be room for: the next one and the one after."""


class Record(Protocol):
    """Journals a decision at the present step; it then comes back through `apply`."""

    def __call__(self, kind: str, *, durable: bool = True, **fields: Any) -> None: ...


class Checkpoints:
    """Makes snapshots durable, and keeps as many as are to be kept.

    What depends on the clock or on the disk is journalled before it is acted on: a resumed run
    takes a durable snapshot at the steps that the clock asked for, does not read again what
    was damaged, and does not aim at what was to be dropped.

    Args:
        state: whose snapshots they are.
        journal: whose decisions must be on disk before a snapshot is.
        cadence: when they are due, and which are kept.
        alive: whether a snapshot belongs to the run's present past.
        record: see `Record`.
        clock: seconds; None for no cadence by minutes.
    """

    def __init__(
        self,
        state: RunState,
        journal: Journal,
        cadence: Cadence,
        *,
        alive: Callable[[SnapshotRef], bool],
        record: Record,
        clock: Callable[[], float] | None,
    ) -> None:
        self._state = state
        self._shelf = state.shelf
        self._journal = journal
        self._cadence = cadence
        self._alive = alive
        self._record = record
        self._clock = clock
        self._due_steps: dict[int, str] = {}
        self._kept: tuple[SnapshotRef, float] | None = None
        self._safe_secs: float | None = None
        self._captured_secs = 0.0
        self._low = False

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the journal, if it is one of these."""
        match record["kind"]:
            case "snapshot_due":
                self._due_steps[record["step"]] = str(record.get("why", "minutes"))
            case "snapshots_dropped":
                self._shelf.dropped.update(str(one["snapshot"]) for one in record["dropped"])
            case "snapshot_passed_over" if record.get("bad") is True:
                self._shelf.bad.add(str(record["snapshot"]))
            case "snapshot":
                name = str(record["snapshot"]["id"])
                self._shelf.dropped.discard(name)
                self._shelf.bad.discard(name)
            case _:
                pass

    # ---- when -----------------------------------------------------------------------

    def why_due(self, step: int) -> str:
        """Why a durable snapshot is due after a step: "steps", "minutes", "health" or "".

        The clock is looked at every `memory_steps` steps. "health" is told only where it was
        journalled before; see `owes_healthy`.
        """
        if step in self._due_steps:
            return self._due_steps[step]
        looked_at = step % max(1, self._cadence.memory_steps) == 0
        secs = self._secs_at_risk() if looked_at else 0.0
        return why_due(step, self._cadence.disk_steps, secs, self._cadence.disk_minutes)

    def on_cadence(self, step: int) -> bool:
        """Whether an uninterrupted run has a snapshot of a step."""
        every = [self._cadence.disk_steps, self._cadence.memory_steps]
        return step in self._due_steps or any(steps and step % steps == 0 for steps in every)

    def looks(self, step: int) -> bool:
        """Whether it is looked, after a step, if a write has ended: ranks meet for it."""
        return not self._shelf.store.shared or step % max(1, self._cadence.memory_steps) == 0

    def owes_healthy(self, held: Sequence[SnapshotRef]) -> bool:
        """Whether the first healthy state is to be durable, since the last durable one is none.

        Else what a recovery needs would be in memory alone for a whole cadence more.

        Args:
            held: the snapshots of the run's lineage that are there.
        """
        due = [ref for ref in held if ref.durable and self.on_cadence(ref.step)]
        newest = max(due, key=lambda ref: (ref.step, ref.attempt), default=None)
        return newest is not None and not newest.health.healthy

    def announce(self, step: int, why: str) -> None:
        """Journal that one is due because of the clock or of health, before it is taken."""
        if why in ("minutes", "health") and step not in self._due_steps:
            self._record("snapshot_due", why=why, secs_at_risk=self._secs_at_risk())

    # ---- writing --------------------------------------------------------------------

    def write(self, ref: SnapshotRef, *, wait: bool, required: bool) -> None:
        """Make a snapshot in memory durable: in the background, unless it is waited for.

        Where the one before is still being written, this one stays in memory only, and the
        journal says so. A disk that fails is warned of and journalled.

        Raises:
            RunDirError: `required`, and the disk did not take it.
            SnapshotError: `required`, and the state cannot be written.
        """
        if self._shelf.writing is not None:
            text = f"{self._shelf.writing.ref.id} is still being written; it stays in memory"
            self._record("snapshot_skipped", durable=False, snapshot=ref.id, reason=text)
            return
        try:
            self._journal.sync()  # a resume needs every decision up to where it begins
            if waiting := self._journal.backlog:
                text = f"the disk has not taken {waiting} decisions that come before it"
                raise OSError(errno.EIO, text)
            self._make_room(ref.step)
            self._captured_secs = self._now()
            self._state.write(ref)
            self.finish(wait=wait, raising=required)
        except OSError as error:
            if required:
                raise RunDirError(
                    f"the first snapshot cannot be written ({error.strerror or error}): free some "
                    "space, or choose another run directory"
                ) from error
            self._failed(ref.step, error)

    def keep(self, ref: SnapshotRef) -> None:
        """Make what was gone back to durable as well, in the background.

        An incident may go back to it again when it has long left memory, or in another process.
        Where something else is being written, it is written after that (`write_kept`), if it is
        still in memory then.
        """
        self._kept = ref, self._now()
        self.write_kept()

    def write_kept(self) -> None:
        """Begin to write what is to be kept, if nothing else is being written."""
        if self._kept is None or self._shelf.writing is not None:
            return
        (ref, secs), self._kept = self._kept, None
        if any(one.id == ref.id and not one.durable for one in self._state.in_memory()):
            self.write(ref, wait=False, required=False)
            self._captured_secs = secs

    def finish(self, *, wait: bool = False, raising: bool = False) -> None:
        """Record a write that has ended, and drop what need not be kept any more."""
        writing = self._shelf.writing
        written = self._state.collect(wait=wait)
        if written is None or writing is None:
            return
        if written.error is not None:
            if raising or not isinstance(written.error, OSError | SnapshotError | MemoryError):
                raise written.error
            self._failed(writing.ref.step, written.error)
            return
        self._safe_secs = self._captured_secs
        size = written.result or 0
        self._record("snapshot", snapshot=writing.ref.to_json(), size_bytes=size)
        self._drop_surplus()

    def taken_up(self, ref: SnapshotRef) -> None:
        """A process has begun at this snapshot: finish what the one before had decided."""
        self._safe_secs = None
        self._remove(lambda: self._shelf.drop(self._shelf.dropped))
        refs, _ = self._shelf.refs()
        if refs and refs[-1].id == ref.id:
            self._drop_surplus()

    def close(self) -> None:
        """Wait for the snapshot that is being written, and record it.

        On several ranks it is not recorded: whoever closes because of an error must not wait
        for a meeting. The next process finds it.
        """
        if not self._shelf.store.shared:
            self.finish(wait=True)
        self._shelf.close()

    # ---- room -----------------------------------------------------------------------

    def _make_room(self, step: int) -> None:
        """See that the next one fits; warn while there is still time.

        Raises:
            OSError: there is no room, and nothing that may be dropped.
        """
        found = self._state.room()
        if found is None:
            return
        free, needed, total = found
        if free < needed:
            self._drop_surplus(room_bytes=max(0, total + free - needed))
            free = (self._state.room() or found)[0]
        low = free < _AHEAD * needed
        if low and not self._low:
            self._record("disk_low", durable=False, free_bytes=free, needed_bytes=needed)
            self._journal.warn(
                f"step {step}: {free} bytes are free where the snapshots are, and the next one "
                f"needs {needed}: free some space. Older ones are dropped for it where they may "
                "be, and training goes on without it where there is no room"
            )
        self._low = low
        if free < needed:
            text = f"{free} bytes are free, {needed} are needed, and no older one may be dropped"
            raise OSError(errno.ENOSPC, text)

    def _drop_surplus(self, room_bytes: int | None = None) -> None:
        """Journal what is to go, then remove it: after a crash between it counts as gone."""
        needed = still_needed(self._journal.records)
        if surplus := self._shelf.surplus(self._alive, room_bytes, needed=needed):
            told = [{"snapshot": name, "why": why} for name, why in surplus]
            self._record("snapshots_dropped", dropped=told)
            self._remove(lambda: self._shelf.drop([name for name, _ in surplus]))

    def _remove(self, remove: Callable[[], object]) -> None:
        try:
            remove()
        except OSError as error:
            self._journal.warn(f"a snapshot could not be removed ({error.strerror or error})")

    def _failed(self, step: int, error: Exception) -> None:
        self._record("snapshot_failed", durable=False, reason=f"step {step}: {error}")
        said = (error.strerror if isinstance(error, OSError) else "") or error
        self._journal.warn(
            f"step {step}: a snapshot could not be written ({said}); "
            "training goes on, and more progress is at risk until the disk takes one"
        )

    # ---- the clock ------------------------------------------------------------------

    def _now(self) -> float:
        return self._clock() if self._clock is not None else 0.0

    def _secs_at_risk(self) -> float:
        """Seconds of training that are not on disk."""
        now = self._now()
        if self._safe_secs is None or now < self._safe_secs:  # a new process, or a clock set back
            self._safe_secs = now
        return now - self._safe_secs


def still_needed(records: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Snapshots that the last incident has gone back to, and may go back to again.

    That may be until its second verification has passed; without probes there is none.

    Args:
        records: those of the journal.
    """
    found: set[str] = set()
    there: set[str] = set()
    incident: Any = None
    went_back = False
    for record in reversed(records):
        match record["kind"]:
            case "verification" if _is_last(record["verification"]):
                break
            case "action_done":
                went_back = record.get("action") == "rollback"
            case "attempt_started" if went_back and "snapshot" in record:
                went_back = False
                there.add(str(record["snapshot"]))  # maybe older than what the plan names
            case "plan":
                if incident is not None and record["incident"] != incident:
                    break
                incident = record["incident"]
                calls = [one for one in record["plan"]["actions"] if one["name"] == "rollback"]
                found.update(str(one["arguments"]["snapshot_id"]) for one in calls)
                found |= there
                there.clear()
            case _:
                pass
    return frozenset(found)


def _is_last(verification: Mapping[str, Any]) -> bool:
    """Whether no second verification follows."""
    passed = verification.get("passed") is True
    return passed and (verification.get("again") is True or not verification.get("probes"))
