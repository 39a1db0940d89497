"""A run as its directory shows it: read by anyone, at any time, without a lock or a trace."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, final

from foreshock.compaction import DiskFolder
from foreshock.core.errors import RunDirError
from foreshock.core.records import (
    FORMAT,
    Lines,
    Provenance,
    ReadingBlock,
    decode_lines,
    decode_provenance,
)
from foreshock.core.segments import attempt_of, folder_of
from foreshock.durable import Disk
from foreshock.files import refuse_links
from foreshock.readings_files import ALL, AttemptReader
from foreshock.readings_parquet import Steps

_DATA_FILE: Final = re.compile(r"attempt-(\d{5,15})\.bin", re.ASCII)
_MAX_ATTEMPT: Final = 10**15


@final
@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run as its directory shows it, finished or not; made by `view_run`."""

    disk: Disk
    run_dir: Path
    identity: dict[str, Any]
    records: list[dict[str, Any]]
    torn_bytes: int
    """Bytes at the end of `decisions.jsonl` that are no whole record (yet)."""

    def attempts(self) -> list[int]:
        """The attempts that have a record or a file, rising."""
        return sorted({*attempts_of(self.disk, self.run_dir, self.records)})

    def readings(
        self, attempt: int, series: Sequence[str] | None = None, steps: Steps = ALL
    ) -> ReadingBlock:
        """Readings of an attempt, those of some series and steps or all; see `AttemptReader`."""
        with self.reader(attempt) as reader:
            return reader.read(series, steps)

    def reader(self, attempt: int) -> AttemptReader:
        """A reader of an attempt, for looking into it more than once; to be closed."""
        folder = readings_path(self.run_dir, attempt)
        refuse_links(folder)
        return AttemptReader(DiskFolder(self.disk, folder), attempt)

    def provenance(self, attempt: int) -> Provenance:
        """See `read_provenance`; FileNotFoundError if the attempt has none."""
        return read_provenance(self.disk, data_path(self.run_dir, attempt))

    def last_trained(self) -> Mapping[int, list[int]]:
        """The provenance of the last attempt that has trained; empty if none has."""
        for attempt in reversed(self.attempts()):
            try:
                provenance = self.provenance(attempt)
            except FileNotFoundError:
                continue
            if provenance:
                return provenance
        return {}


def position_after(provenance: Mapping[int, list[int]]) -> int:
    """The raw position after the highest that trained; 0 if nothing has."""
    return max((max(places, default=-1) for places in provenance.values()), default=-1) + 1


def read_provenance(disk: Disk, path: Path) -> Provenance:
    """Step to stream positions of one attempt, up to the first record that is not whole.

    Raises JournalError if it is no provenance file, or its header is damaged, or a step
    claims more positions than any batch has.
    """
    return decode_provenance(disk.read(path), str(path))


def view_run(disk: Disk, run_dir: Path) -> RunView:
    """Look at a run without touching it.

    Raises RunDirError if this is no run directory or a newer Foreshock made it, and
    JournalError if a decision that was safe on disk is damaged.
    """
    try:
        identity = read_identity(disk, run_dir)
        lines = read_decisions(disk, run_dir)
        refuse_links(run_dir / "readings", run_dir / "data")
    except OSError as error:
        raise RunDirError(f"{run_dir} cannot be read: {error}.") from error
    return RunView(
        disk=disk,
        run_dir=run_dir,
        identity=identity,
        records=lines.records,
        torn_bytes=lines.torn_bytes,
    )


def read_identity(disk: Disk, run_dir: Path) -> dict[str, Any]:
    """What `run.json` says; RunDirError if it is missing, damaged or of another format."""
    path = run_dir / "run.json"
    if not disk.exists(path):
        raise RunDirError(f"{run_dir} is not a Foreshock run directory: it has no run.json.")
    try:
        identity = json.loads(disk.read(path))
    except (ValueError, RecursionError) as error:
        raise RunDirError(f"{path} is not JSON ({error}): restore it from a copy.") from error
    version = cast("dict[str, Any]", identity).get("format") if isinstance(identity, dict) else None
    if version != FORMAT:
        raise RunDirError(
            f"{path} has format {version!r:.80} and this Foreshock reads format {FORMAT}: use "
            f"the version that wrote it, or choose another run directory."
        )
    return cast("dict[str, Any]", identity)


def read_decisions(disk: Disk, run_dir: Path) -> Lines:
    """Every decision; JournalError if one that was safe on disk is damaged."""
    path = run_dir / "decisions.jsonl"
    return decode_lines(disk.read(path) if disk.exists(path) else b"", str(path))


def readings_path(run_dir: Path, attempt: int) -> Path:
    """The folder of an attempt's readings."""
    return run_dir / "readings" / folder_of(attempt)


def data_path(run_dir: Path, attempt: int) -> Path:
    """The file of an attempt's provenance."""
    return run_dir / "data" / f"attempt-{attempt:05d}.bin"


def attempts_of(disk: Disk, run_dir: Path, records: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """The attempts that have a record or a file, in any order, some more than once."""
    for record in records:
        attempt = record.get("attempt")
        if type(attempt) is int and 0 <= attempt < _MAX_ATTEMPT:
            yield attempt
    if disk.exists(run_dir / "readings"):
        for name in disk.list(run_dir / "readings"):
            if (found := attempt_of(name)) is not None:
                yield found
    if disk.exists(run_dir / "data"):
        for name in disk.list(run_dir / "data"):
            if match := _DATA_FILE.fullmatch(name):
                yield int(match[1])
