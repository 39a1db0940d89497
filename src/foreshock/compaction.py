"""Closed segments of readings become tables, and small tables become large ones.

A table is written whole and made durable before anything that it replaces is removed. So a
crash at any moment loses nothing, and shows nothing twice, because of two files that hold the
same readings the wider one counts. What a crash left is removed, or done, by the next process.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, final

from foreshock.core.errors import JournalError
from foreshock.core.records import ReadingBlock, decode_readings, reading_size
from foreshock.core.segments import MIN_RECORDS, Piece, group_rows, sort_out, table_of, to_merge
from foreshock.durable import Disk, write_file
from foreshock.readings_parquet import TableFile, encode_blocks, require_pyarrow

_SPARE_BYTES: Final = 64 << 20  # left free for what matters more: snapshots and decisions


def never() -> None:
    """A check that never stops anything."""


@dataclass(frozen=True)
class DiskFolder:
    """A folder of readings on a disk, as `readings_files` reads it."""

    disk: Disk
    path: Path

    @property
    def shown(self) -> str:
        """Its path, for messages."""
        return str(self.path)

    def names(self) -> list[str]:
        """The names of the files in it; none if it is not there."""
        return self.disk.list(self.path) if self.disk.exists(self.path) else []

    def open(self, name: str) -> BinaryIO:
        """Open one of them for reading."""
        return self.disk.open(self.path / name)


@final
@dataclass(frozen=True, kw_only=True)
class Compaction:
    """The work on one attempt's folder, done piece by piece by whoever has locked the run.

    Attributes:
        disk: where it is.
        folder: the attempt's folder.
        attempt: its number.
        check: called between row groups; what it raises undoes the table being written.
        passed_over: segments that were found to be left as they are; added to.
    """

    disk: Disk
    folder: Path
    attempt: int
    check: Callable[[], None] = never
    passed_over: set[Path]

    def next(self, closed_to: int | None = None) -> bool:
        """Do the next piece of work; False if there is none left.

        In this order: remove what a table has replaced, turn a closed segment into a table,
        merge eight neighbouring tables of one size. A segment is left as it is if it is short
        (its columns would cost more than they save) or damaged before its end.

        Args:
            closed_to: the last segment that is closed; all of them by default.

        Raises:
            OSError: the disk fails, or has too little room to spare.
            JournalError: a table is damaged.
            MissingExtra: pyarrow is not installed.
        """
        pieces = sort_out(self.disk.list(self.folder))
        if pieces.replaced:
            self.disk.sync_dir(self.folder)  # the table's name may be as young as the crash
            for piece in pieces.replaced:
                self.disk.remove(self.folder / piece.name)
            return True
        for piece in pieces.counting:
            if piece.is_table or (closed_to is not None and piece.first > closed_to):
                continue
            block = self._worth_it(piece)
            if block is not None:
                self._replace([piece], iter([block]), block.series)
                return True
        merged = to_merge(pieces.counting)
        if not merged:
            return False
        with self._table(merged[0]) as first:
            series = first.series
        self._replace(merged, self._blocks(merged, series), series)
        return True

    def _worth_it(self, piece: Piece) -> ReadingBlock | None:
        """A segment's readings, if a table of them loses nothing and saves something."""
        path = self.folder / piece.name
        if path in self.passed_over:
            return None
        try:
            block = decode_readings(self.disk.read(path), str(path), piece.first)
        except JournalError:
            block = None
        if (
            block is None
            or block.attempt != self.attempt
            or len(block.steps) < MIN_RECORDS
            or block.torn_bytes >= reading_size(len(block.series))
        ):
            self.passed_over.add(path)
            return None
        return block

    def _table(self, piece: Piece) -> TableFile:
        path = self.folder / piece.name
        return TableFile(self.disk.open(path), str(path), piece, self.attempt)

    def _blocks(self, pieces: Sequence[Piece], series: tuple[str, ...]) -> Iterator[ReadingBlock]:
        for piece in pieces:
            with self._table(piece) as table:
                if table.series != series:
                    raise JournalError(
                        f"{self.folder / piece.name} has other series than the tables before it."
                    )
                for group in range(table.num_groups):
                    yield from table.read([group], series)

    def _replace(
        self, pieces: Sequence[Piece], blocks: Iterator[ReadingBlock], series: tuple[str, ...]
    ) -> None:
        """Write the table that takes the place of these pieces, and remove them."""
        require_pyarrow()
        table = table_of(pieces)
        path = self.folder / table.name
        size = sum(self.disk.size(self.folder / piece.name) for piece in pieces)
        if self.disk.free_bytes(self.folder) < 2 * size + _SPARE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        def chunks() -> Iterator[bytes]:
            rows = group_rows(len(series))
            for chunk in encode_blocks(blocks, table, self.attempt, series, rows):
                self.check()
                yield chunk

        self.check()
        write_file(self.disk, path, chunks())
        for piece in pieces:
            self.disk.remove(self.folder / piece.name)
