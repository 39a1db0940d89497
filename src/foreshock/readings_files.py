"""The readings of one attempt, read from its folder: also while it is written and compacted.

Only what is asked for is read: of a table the columns and row groups that hold it, of a
segment (which is small) everything. A file that is compacted away in the middle of a read is
found again in the table that took its place.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol, Self, TypeVar, final

import numpy as np

from foreshock.core.errors import JournalError
from foreshock.core.records import ReadingBlock, decode_readings
from foreshock.core.segments import Piece, Pieces, join, part, sort_out
from foreshock.readings_parquet import MAX_VALUES, Steps, TableFile

Found = TypeVar("Found")

ALL: Final[Steps] = (None, None)

_TRIES: Final = 20
_MAX_SEGMENT_BYTES: Final = 1 << 30  # of a segment that is not forged: 16 MiB, or 512 steps


class Folder(Protocol):
    """The folder of an attempt's readings, wherever it lies."""

    @property
    def shown(self) -> str:
        """Its path, for messages."""
        ...

    def names(self) -> list[str]:
        """The names of the files in it."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Open one of them for reading. Raises FileNotFoundError if it is gone."""
        ...


@dataclass(frozen=True)
class _Segment:
    """A segment as it was when it was read; it may have grown since."""

    size: int
    end: bytes
    block: ReadingBlock


@final
class AttemptReader:
    """Reads one attempt again and again; tables stay open, so that a second read is quicker.

    Args:
        folder: where its files are.
        attempt: its number, which the files must bear.

    Raises of every method:
        FileNotFoundError: the attempt has no readings.
        JournalError: a file is damaged at its root or forged, or too much was asked for.
        MissingExtra: there are tables, and pyarrow is not installed.
        OSError: the disk fails.
    """

    def __init__(self, folder: Folder, attempt: int) -> None:
        self._folder = folder
        self._attempt = attempt
        self._tables: dict[Piece, TableFile] = {}
        self._segments: dict[Piece, _Segment] = {}

    def series(self) -> tuple[str, ...]:
        """The names of the series, in the order in which they are kept."""
        return self._retried(lambda pieces: self._series_of(pieces.counting[0]))

    def num_missing(self) -> int:
        """Segments that are in no file, though later ones are."""
        return self._pieces().num_missing

    def size(self) -> tuple[int, int]:
        """The number of steps that are kept, and of series."""

        def count(pieces: Pieces) -> tuple[int, int]:
            rows = (
                self._table(one).num_rows if one.is_table else len(self._segment(one).steps)
                for one in pieces.counting
            )
            return sum(rows), len(self._series_of(pieces.counting[0]))

        return self._retried(count)

    def read(self, series: Sequence[str] | None = None, steps: Steps = ALL) -> ReadingBlock:
        """The readings of some series (all by default) at some steps (all by default).

        A series that the attempt did not measure raises KeyError.
        """
        return self._retried(lambda pieces: self._read(pieces, series, steps))

    def close(self) -> None:
        """Close what is open; reading opens it anew."""
        for table in self._tables.values():
            table.close()
        self._tables.clear()
        self._segments.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, pieces: Pieces, series: Sequence[str] | None, steps: Steps) -> ReadingBlock:
        names = self._series_of(pieces.counting[0])
        wanted = names if series is None else tuple(series)
        place = {name: at for at, name in enumerate(names)}
        columns = [place[name] for name in wanted]
        budget = MAX_VALUES
        blocks: list[ReadingBlock] = []
        for piece in pieces.counting:
            for block in self._blocks(piece, names, columns, steps):
                chosen = within(block, steps)
                blocks.append(chosen)
                budget -= chosen.values.size
                if budget < 0:
                    raise JournalError(
                        f"{self._folder.shown}: more than {MAX_VALUES:,} values at once; ask for "
                        "fewer series or steps."
                    )
        return join(blocks) if blocks else _nothing(self._attempt, wanted)

    def _blocks(
        self, piece: Piece, names: tuple[str, ...], columns: list[int], steps: Steps
    ) -> Iterator[ReadingBlock]:
        if self._series_of(piece) != names:
            raise JournalError(
                f"{self._folder.shown}: {piece.name} has other series than the files before it."
            )
        if piece.is_table:
            table = self._table(piece)
            groups = table.groups_in(steps)
            for block in table.read(groups, [names[at] for at in columns], steps):
                yield _of_attempt(block, self._attempt)
            return
        block = self._segment(piece)
        whole = columns == list(range(len(names)))
        yield ReadingBlock(
            attempt=self._attempt,
            series=tuple(names[at] for at in columns),
            steps=block.steps,
            flags=block.flags,
            values=block.values if whole else block.values[:, columns],
            torn_bytes=block.torn_bytes,
        )

    def _series_of(self, piece: Piece) -> tuple[str, ...]:
        return self._table(piece).series if piece.is_table else self._segment(piece).series

    def _table(self, piece: Piece) -> TableFile:
        if piece not in self._tables:
            file = self._folder.open(piece.name)
            try:
                shown = f"{self._folder.shown}/{piece.name}"
                self._tables[piece] = TableFile(file, shown, piece, self._attempt)
            except BaseException:
                file.close()
                raise
        return self._tables[piece]

    def _segment(self, piece: Piece) -> ReadingBlock:
        known = self._segments.get(piece)
        with self._folder.open(piece.name) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 64))
            end = file.read(64)
            if known is not None and (known.size, known.end) == (size, end):
                return known.block
            shown = f"{self._folder.shown}/{piece.name}"
            if size > _MAX_SEGMENT_BYTES:
                raise JournalError(f"{shown} has {size:,} bytes; no segment is as large.")
            file.seek(0)
            data = file.read(size)
        block = decode_readings(data, shown, piece.first)
        if block.attempt != self._attempt:
            raise JournalError(f"{shown}: its header is that of attempt {block.attempt}.")
        self._segments = {piece: _Segment(size, end, block)}  # one: the last is asked for most
        return block

    def _pieces(self) -> Pieces:
        """What the folder holds. A listing is no snapshot, so two in a row must be equal."""
        names: list[str] | None = None
        for _ in range(_TRIES):
            before, names = names, sorted(self._folder.names())
            if names == before:
                break
        return sort_out(names or [])

    def _retried(self, look: Callable[[Pieces], Found]) -> Found:
        for attempt in range(_TRIES):
            pieces = self._pieces()
            if not pieces.counting:
                break
            for gone in self._tables.keys() - set(pieces.counting):
                self._tables.pop(gone).close()
            try:
                return look(pieces)
            except FileNotFoundError:
                if attempt == _TRIES - 1:
                    raise
        raise FileNotFoundError(f"{self._folder.shown} holds no readings")


def within(block: ReadingBlock, steps: Steps) -> ReadingBlock:
    """The rows from the first to the last step, both included."""
    first, last = steps
    if not len(block.steps):
        return block
    low = first is None or int(block.steps.min()) >= first
    high = last is None or int(block.steps.max()) <= last
    if low and high:
        return block
    chosen = np.ones(len(block.steps), np.bool_)
    if first is not None:
        chosen &= block.steps >= first
    if last is not None:
        chosen &= block.steps <= last
    rows = np.flatnonzero(chosen)
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return part(block, slice(int(rows[0]), int(rows[-1]) + 1))
    return part(block, rows)


def _of_attempt(block: ReadingBlock, attempt: int) -> ReadingBlock:
    return ReadingBlock(
        attempt=attempt,
        series=block.series,
        steps=block.steps,
        flags=block.flags,
        values=block.values,
        torn_bytes=block.torn_bytes,
    )


def _nothing(attempt: int, series: Sequence[str]) -> ReadingBlock:
    return ReadingBlock(
        attempt=attempt,
        series=tuple(series),
        steps=np.zeros(0, np.int64),
        flags=np.zeros(0, np.int32),
        values=np.zeros((0, len(series)), np.float32),
        torn_bytes=0,
    )
