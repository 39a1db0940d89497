"""How the readings of an attempt are cut into files, and which of them count.

Readings are appended to numbered *segments* (`000000007.bin`). A *table* (Parquet) takes the
place of the segments that its name spans (`000000001-000000008.parquet`). A crash may leave
both: the wider one counts, so that nothing is lost and nothing counts twice.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from foreshock.core.errors import JournalError
from foreshock.core.records import ReadingBlock, reading_size

SEGMENT_BYTES: Final = 16 << 20
"""A segment is full at this size. Our choice: read whole within tens of milliseconds."""

SEGMENT_RECORDS: Final = 8192
"""Or at this many steps, so that a run of few series is compacted too."""

MIN_RECORDS: Final = 512
"""But not below: columns shorter than this cost more in a table than they save."""

FAN: Final = 8
"""So many neighbours of one size are merged into one table."""

MAX_SPAN: Final = FAN * FAN
"""Segments in the largest table: 64 times 16 MiB is 1 GiB of readings."""

GROUP_VALUES: Final = 1 << 23
GROUP_ROWS: Final = 8192
"""At most so many values and rows in one row group: what one query decodes at least."""

_SEGMENT: Final = re.compile(r"(\d{9})\.bin", re.ASCII)
_TABLE: Final = re.compile(r"(\d{9})-(\d{9})\.parquet", re.ASCII)
_FOLDER: Final = re.compile(r"attempt-(\d{5,15})", re.ASCII)


@dataclass(frozen=True, order=True)
class Piece:
    """One file of readings and the segments that it holds."""

    first: int
    last: int
    is_table: bool

    @property
    def name(self) -> str:
        """The file's name."""
        if self.is_table:
            return f"{self.first:09d}-{self.last:09d}.parquet"
        return f"{self.first:09d}.bin"

    @property
    def span(self) -> int:
        """The number of segments in it."""
        return self.last - self.first + 1


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The files of an attempt: those that count, rising, and those that a table replaced."""

    counting: tuple[Piece, ...]
    replaced: tuple[Piece, ...]
    num_missing: int
    """Segments before the last one that are in no file."""


def segment(number: int) -> Piece:
    """The segment of this number."""
    return Piece(number, number, is_table=False)


def table_of(pieces: Sequence[Piece]) -> Piece:
    """The table that takes the place of neighbouring pieces."""
    return Piece(pieces[0].first, pieces[-1].last, is_table=True)


def folder_of(attempt: int) -> str:
    """The name of the folder that holds an attempt's readings."""
    return f"attempt-{attempt:05d}"


def attempt_of(folder: str) -> int | None:
    """The attempt whose readings a folder of this name holds; None for any other name.

    >>> attempt_of("attempt-00012"), attempt_of("attempt-00012.bin")
    (12, None)
    """
    match = _FOLDER.fullmatch(folder)
    return int(match[1]) if match else None


def sort_out(names: Iterable[str]) -> Pieces:
    """Say which of the files in an attempt's folder count; other names are passed over.

    Raises:
        JournalError: two tables hold some, but not all, of each other's segments, which no
            crash leaves behind.

    >>> found = sort_out(["000000001-000000002.parquet", "000000002.bin", "000000003.bin"])
    >>> [piece.name for piece in found.counting]
    ['000000001-000000002.parquet', '000000003.bin']
    """
    pieces = [piece for piece in map(_piece, names) if piece is not None]
    counting: list[Piece] = []
    replaced: list[Piece] = []
    covered = num_missing = 0
    for piece in sorted(pieces, key=lambda one: (one.first, -one.last, not one.is_table)):
        if piece.last <= covered:
            replaced.append(piece)
        elif piece.first <= covered:
            raise JournalError(
                f"{counting[-1].name} and {piece.name} overlap: restore the folder from a copy."
            )
        else:
            num_missing += piece.first - covered - 1
            counting.append(piece)
            covered = piece.last
    return Pieces(counting=tuple(counting), replaced=tuple(replaced), num_missing=num_missing)


def to_merge(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The first `FAN` neighbouring tables of one size, or nothing.

    Merging in tiers writes each reading three times in all, and leaves of 64 segments at
    most 21 files besides those that are full.
    """
    begin = 0
    for at, piece in enumerate(pieces):
        before = pieces[at - 1] if at else None
        if before is None or not _neighbours(before, piece):
            begin = at
        if piece.is_table and piece.span < MAX_SPAN and at - begin + 1 == FAN:
            return pieces[begin : at + 1]
    return ()


def is_full(num_records: int, num_series: int) -> bool:
    """Whether a segment of so many records is to be closed."""
    if num_records >= SEGMENT_RECORDS:
        return True
    size = num_records * reading_size(num_series)
    return size >= SEGMENT_BYTES and num_records >= MIN_RECORDS


def group_rows(num_series: int) -> int:
    """Rows of a row group in a table of so many series."""
    return min(GROUP_ROWS, max(MIN_RECORDS, GROUP_VALUES // max(1, num_series)))


def join(blocks: Sequence[ReadingBlock]) -> ReadingBlock:
    """Blocks of the same series, one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    num_rows = sum(len(block.steps) for block in blocks)
    values = np.empty((len(blocks[0].series), num_rows), np.float32).T
    at = 0
    for block in blocks:
        values[at : at + len(block.steps)] = block.values
        at += len(block.steps)
    return ReadingBlock(
        attempt=blocks[0].attempt,
        series=blocks[0].series,
        steps=np.concatenate([block.steps for block in blocks]),
        flags=np.concatenate([block.flags for block in blocks]),
        values=values,
        torn_bytes=sum(block.torn_bytes for block in blocks),
    )


def part(block: ReadingBlock, rows: slice | npt.NDArray[Any]) -> ReadingBlock:
    """Some rows of a block."""
    return ReadingBlock(
        attempt=block.attempt,
        series=block.series,
        steps=block.steps[rows],
        flags=block.flags[rows],
        values=block.values[rows],
        torn_bytes=block.torn_bytes,
    )


def _neighbours(before: Piece, piece: Piece) -> bool:
    alike = before.is_table and piece.is_table and before.span == piece.span
    return alike and before.last + 1 == piece.first


def _piece(name: str) -> Piece | None:
    if match := _SEGMENT.fullmatch(name):
        first = last = int(match[1])
    elif match := _TABLE.fullmatch(name):
        first, last = int(match[1]), int(match[2])
    else:
        return None
    if not 1 <= first <= last:
        return None
    return Piece(first, last, is_table=name.endswith(".parquet"))
