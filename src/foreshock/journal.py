"""The run directory: what happened, in what order, kept so that no crash can take it back.

    RUN/
      run.json                     who this run is: format, program, fingerprint, stream, settings
      decisions.jsonl              what was decided: one JSON object a line, each with its "crc"
      readings/attempt-00001/      what was measured, step by step
      data/attempt-00001.bin       which stream positions each step consumed
      snapshots/                   written by others; the journal only makes the directory
      lock                         held while a process runs here

`docs/run-directory.md` gives every format to the byte. Decisions are never lost: while the
disk is full they wait in memory, in order. Readings and provenance are dropped then, and
counted. Training goes on either way.

One journal belongs to one process and thread. On several ranks rank 0 has it, and each of the
others one by `follow`, which makes the same records out of the same decisions and writes
nothing. Others look on through `Journal.read`, which takes no lock and writes nothing, also
while the run goes on.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, cast, final

import numpy as np
import numpy.typing as npt

from foreshock.core.errors import JournalError, RunDirError
from foreshock.core.records import (
    FORMAT,
    Lines,
    Provenance,
    ReadingBlock,
    decode_line,
    encode_line,
    encode_provenance,
    encode_provenance_header,
    number,
)
from foreshock.decided import Decided
from foreshock.durable import AppendLog, Disk, Lock, clean_leftovers, write_file
from foreshock.files import refuse_links
from foreshock.outage import DroppingLog, WaitingLog, Warn
from foreshock.readings_log import ReadingsLog
from foreshock.run_view import (
    RunView,
    attempts_of,
    data_path,
    read_decisions,
    read_identity,
    read_provenance,
    readings_path,
    view_run,
)

__all__ = [
    "Journal",
    "Provenance",
    "ReadingBlock",
    "RunView",
    "decode_line",
    "encode_line",
    "number",
    "read_provenance",
]

_BELONGS: Final = ("program", "fingerprint", "stream")
"""What must be the same for a run to be resumed; version and settings may change."""

_RESERVED: Final = frozenset({"crc", "time", "unsynced_bytes"})


@final
class Journal:
    """The journal of a run in progress: made by `create` or `open`, ended by `close`.

    A failing disk never raises once the journal is open: `warn` is called once per outage,
    decisions wait (`backlog`), readings and provenance are dropped and counted. `warn`
    defaults to the "foreshock" logger. `clock` returns seconds.
    """

    def __init__(
        self,
        disk: Disk,
        run_dir: Path,
        identity: dict[str, Any],
        lines: Lines,
        lock: Lock,
        *,
        clock: Callable[[], float],
        warn: Warn | None,
    ) -> None:
        """For `create` and `open` only."""
        self.run_dir = run_dir
        self.identity = identity
        self.records = lines.records
        """Every decision so far, this process's included, as reading the file returns it."""
        self.torn_bytes = lines.torn_bytes
        """Bytes of a half-written end that `open` cut off `decisions.jsonl`."""
        self._disk = disk
        self._lock = lock
        self._clock = clock
        self.warn: Warn = warn or logging.getLogger("foreshock").warning
        for name in ("readings", "data", "snapshots"):
            refuse_links(run_dir / name)
            disk.make_dir(run_dir / name)
            clean_leftovers(disk, run_dir / name)
        self.last_attempt = max(attempts_of(disk, run_dir, self.records), default=0)
        """The highest attempt with a record or a file; the next one is free to use."""
        log = AppendLog(disk, run_dir / "decisions.jsonl")
        log.repair(lines.valid_size)
        self._decisions = WaitingLog(log, self.warn)
        self.decided = Decided()
        """What this process has recorded and what is acted on, as a digest."""
        self.confirm: Callable[[dict[str, Any]], None] | None = None
        """Called with each record before it is written, to see whether all ranks have it."""
        self.share: Callable[[int], int] | None = None
        """Makes of this rank's backlog the one that all ranks reckon with, at every `sync`."""
        self._shared_backlog = 0
        self._provenance = DroppingLog(self.warn)
        self._readings = ReadingsLog(disk, run_dir / "readings", self.warn)

    @classmethod
    def create(
        cls,
        disk: Disk,
        run_dir: Path,
        identity: Mapping[str, Any],
        clock: Callable[[], float],
        *,
        warn: Warn | None = None,
    ) -> Self:
        """Begin a run in a directory that is missing or empty.

        `identity` holds version, program, fingerprint, stream and settings, all of them
        JSON. Raises RunDirError if something is in the directory already or another
        process has it, and OSError if the disk fails.
        """
        try:
            disk.make_dir(run_dir)
        except (FileExistsError, NotADirectoryError):
            raise RunDirError(f"{run_dir} is a file: choose another run directory.") from None
        if not disk.exists(run_dir / "run.json"):
            _refuse_unless_empty(disk, run_dir)  # before a lock is left in someone's folder
        lock = disk.lock(run_dir / "lock")
        try:
            _refuse_unless_empty(disk, run_dir)
            known = decode_line(encode_line({"format": FORMAT, **identity}))
            text = json.dumps(known, indent=2) + "\n"
            write_file(disk, run_dir / "run.json", [text.encode()])
            lines = Lines(records=[], valid_size=0, torn_bytes=0)
            return cls(disk, run_dir, known, lines, lock, clock=clock, warn=warn)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(
        cls,
        disk: Disk,
        run_dir: Path,
        identity: Mapping[str, Any] | None,
        clock: Callable[[], float],
        *,
        warn: Warn | None = None,
    ) -> Self:
        """Resume a run: cut the half-written end of its decisions and go on behind it.

        With `identity`, its program, fingerprint and stream must be those of the run.
        Raises RunDirError if they are not, if this is no run directory, if a newer
        Foreshock made it, or if another process has it; JournalError if a decision that
        was safe on disk is damaged; OSError if the disk fails.
        """
        known = read_identity(disk, run_dir)
        if identity is not None:
            given = decode_line(encode_line(identity))
            differing = [key for key in _BELONGS if given.get(key) != known.get(key)]
            if differing:
                key = differing[0]
                raise RunDirError(
                    f"{run_dir} belongs to a run with another {' and '.join(differing)} "
                    f"({_difference(key, known.get(key), given.get(key))}): resume "
                    f"with what it was started with, or choose another run directory."
                )
        lock = disk.lock(run_dir / "lock")
        try:
            clean_leftovers(disk, run_dir)
            lines = read_decisions(disk, run_dir)
            return cls(disk, run_dir, known, lines, lock, clock=clock, warn=warn)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def follow(
        cls,
        nowhere: Disk,
        run_dir: Path,
        identity: dict[str, Any],
        records: Sequence[Mapping[str, Any]],
        clock: Callable[[], float],
        *,
        last_attempt: int,
    ) -> Self:
        """Follow the journal that another rank has: keep the same records, in memory only.

        Args:
            nowhere: a disk without files that takes everything and keeps nothing.
            run_dir: for messages.
            identity: as the other rank has it.
            records: every decision so far, as the other rank read them.
            clock: seconds.
            last_attempt: the other rank's.
        """
        lines = Lines(records=[dict(record) for record in records], valid_size=0, torn_bytes=0)
        lock = nowhere.lock(run_dir / "lock")
        followed = cls(nowhere, run_dir, identity, lines, lock, clock=clock, warn=_no_warning)
        followed.last_attempt = last_attempt
        return followed

    @staticmethod
    def read(disk: Disk, run_dir: Path) -> RunView:
        """Look at a run, finished or not, without touching it.

        Raises RunDirError if this is no run directory or a newer Foreshock made it, and
        JournalError if a decision that was safe on disk is damaged.
        """
        return view_run(disk, run_dir)

    def write(
        self, kind: str, *, attempt: int, step: int, durable: bool = True, **fields: Any
    ) -> dict[str, Any]:
        """Record a decision and return it as a later reader will see it.

        With `durable` it would survive a power loss when this returns, if `backlog` is 0
        then; without, it does from the next durable record or `sync` on. Raises
        JournalError for a field that JSON cannot hold or that is reserved, and nothing
        for a failing disk.
        """
        if not _RESERVED.isdisjoint(fields):
            names = ", ".join(sorted(_RESERVED & fields.keys()))
            raise JournalError(f"a {kind} record cannot have the reserved field {names}.")
        stamp = {"kind": kind, "time": self._clock(), "attempt": attempt, "step": step}
        record = decode_line(encode_line({**stamp, **fields}))
        self.decided.add(record)
        if self.confirm is not None:
            self.confirm(record)
        self.records.append(record)
        self.last_attempt = max(self.last_attempt, attempt)
        self._decisions.put(record, durable=durable)
        return record

    @property
    def backlog(self) -> int:
        """The number of decisions that wait for the disk to take them.

        On several ranks that of the rank which writes, as of the last `sync`.
        """
        return len(self._decisions.waiting) if self.share is None else self._shared_backlog

    def open_readings(self, attempt: int, series: Sequence[str]) -> None:
        """Begin the readings of an attempt, and make those of the one before durable.

        A file appears with the first reading. Raises JournalError if this attempt has some
        already, or if `series` has no, repeated or reserved names.
        """
        self._refuse_second(readings_path(self.run_dir, attempt))
        self._readings.begin(attempt, series)
        self.last_attempt = max(self.last_attempt, attempt)

    def append_reading(self, step: int, flags: int, values: npt.NDArray[np.float32]) -> None:
        """Record one step, `values[s]` being that of `series[s]`; microseconds, not synced.

        A value may be `ABSENT`. Raises JournalError if their number is not that of the series.
        """
        self._readings.append(step, flags, values)

    def wait_for_compaction(self, secs: float | None = None) -> bool:
        """Wait until all readings that can be are compacted; whether that came about in time."""
        return self._readings.wait(secs)

    def open_provenance(self, attempt: int) -> None:
        """Begin the provenance of an attempt, and make that of the one before durable.

        The file appears with the first record. Raises JournalError if this attempt has one.
        """
        path = data_path(self.run_dir, attempt)
        self._refuse_second(path)
        log = AppendLog(self._disk, path, header=encode_provenance_header(attempt))
        self._provenance.begin(log)
        self.last_attempt = max(self.last_attempt, attempt)

    def append_provenance(self, step: int, positions: Sequence[int]) -> None:
        """Record the stream positions that a step consumed, in order; not synced.

        Calls for the same step add up. Raises JournalError for a negative position.
        """
        self._provenance.append(encode_provenance(step, positions))

    @property
    def dropped_readings(self) -> int:
        """The number of steps whose readings a failing disk did not take."""
        return self._readings.dropped

    @property
    def dropped_provenance(self) -> int:
        """The number of provenance records that a failing disk did not take."""
        return self._provenance.dropped

    def sync(self) -> None:
        """Make everything so far durable, and try the backlog again.

        On several ranks they meet for it: see `share`.
        """
        self._sync()
        if self.share is not None:
            self._shared_backlog = self.share(len(self._decisions.waiting))

    def _sync(self) -> None:
        self._decisions.sync()
        self._readings.sync()
        self._provenance.sync()

    def close(self) -> None:
        """Make everything durable and free the run directory; a second call does nothing.

        Decisions that the disk still does not take are lost; `warn` says how many. Readings
        are not compacted now: the next process does what is left, and they are read as well
        without. If the disk hangs in the middle of that, the directory stays locked until
        this process ends.
        """
        ended = False
        try:
            self._sync()
            if waiting := len(self._decisions.waiting):
                self.warn(f"{waiting} decisions of {self.run_dir} could not be written.")
        finally:
            ended = self._readings.close()
            if ended:
                self._lock.close()
            else:
                self.warn(f"{self.run_dir} stays locked: its disk does not answer.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_second(self, path: Path) -> None:
        if self._disk.exists(path):
            raise JournalError(
                f"{path} exists: an attempt is recorded once, and the next free one is "
                f"{self.last_attempt + 1}."
            )


def _no_warning(_: str) -> None:
    """The rank that writes warns."""


def _refuse_unless_empty(disk: Disk, run_dir: Path) -> None:
    found = sorted({*disk.list(run_dir)} - {"lock", ".run.json.tmp"})
    if found:
        what, todo = f"is not empty (it holds {found[0]})", ""
        if "run.json" in found:
            what, todo = "holds a run already", "resume it with `--resume`, or "
        raise RunDirError(f"{run_dir} {what}: {todo}choose another run directory.")


def _difference(name: str, was: Any, now: Any) -> str:
    """The first thing that two identities differ in, by its place in them."""
    mine, other = _entries(was), _entries(now)
    for key in {**mine, **other} if mine and other else ():
        if mine.get(key) != other.get(key):
            return _difference(f"{name}.{key}", mine.get(key), other.get(key))
    return f"{name} was {was!r:.80}, now {now!r:.80}"


def _entries(value: Any) -> dict[str, Any]:
    """What a mapping holds, or a list of mappings; nothing of anything else."""
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    items = cast(list[Any], value) if isinstance(value, list) else []
    described = all(isinstance(item, dict) for item in items)
    return {str(place): item for place, item in enumerate(items)} if described else {}
