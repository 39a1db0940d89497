"""Tables of readings: the columns step and flags, then one a series, as Parquet.

Values keep their bits: NaN stays NaN, and `ABSENT` is null. Needs pyarrow, from the extra
`storage`; everything is checked when it is read, and what pyarrow says of damage becomes a
JournalError of one sentence.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self, cast, final

import numpy as np
import numpy.typing as npt

from foreshock.core.errors import JournalError, MissingExtra
from foreshock.core.reading import ABSENT, is_absent
from foreshock.core.records import COLUMNS, ReadingBlock
from foreshock.core.segments import Piece, join, part
from foreshock.core.text import one_line

if TYPE_CHECKING:
    import pyarrow as pa

Steps = tuple[int | None, int | None]
"""The first and the last step wanted, both included; None where there is no limit."""

MAX_VALUES: Final = 1 << 30
"""Values that are read at once, 4 GiB. Our choice: more is a mistake, or a forged file."""

_KEY: Final = b"foreshock"
_MAX_GROUP_ROWS: Final = 1 << 16  # eight times what is ever written
_AT_ONCE: Final = 1 << 24  # values decoded before they are put in their place
_LEVEL: Final = 1  # of zstd; 3 takes twice the time for 0.3 % on noise


def require_pyarrow() -> None:
    """Raise MissingExtra if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401, PLC0415
    except ImportError as error:
        raise MissingExtra(
            "tables of readings are kept as Parquet, which needs pyarrow: "
            "pip install 'foreshock[storage]'"
        ) from error


def value_array(values: npt.NDArray[np.float32]) -> "pa.Array":
    """A column of `values`, `[T]` float32: the same bits, and null where one is absent."""
    import pyarrow as pa  # noqa: PLC0415

    plain = np.ascontiguousarray(values, "<f4")
    absent = is_absent(plain)
    num_absent = int(np.count_nonzero(absent))
    valid = None
    if num_absent:
        valid = pa.py_buffer(np.packbits(~absent, bitorder="little").tobytes())
    buffers = [valid, pa.py_buffer(plain)]
    return pa.Array.from_buffers(pa.float32(), len(plain), buffers, num_absent)


def wide_table(block: ReadingBlock) -> "pa.Table":
    """The table of a block: step, flags, and one column a series."""
    import pyarrow as pa  # noqa: PLC0415

    columns = np.asfortranarray(block.values)
    arrays = [pa.array(block.steps), pa.array(block.flags)]
    arrays += [value_array(columns[:, at]) for at in range(columns.shape[1])]
    return pa.Table.from_arrays(arrays, schema=_schema(block.series))


def encode_tables(
    tables: Iterable["pa.Table"],
    schema: "pa.Schema",
    floats: Sequence[str],
    texts: Sequence[str] = (),
    label: str | None = None,
) -> Iterator[bytes]:
    """The bytes of a Parquet file, a row group a table, given out as they come about.

    zstd over the bytes of the floats, each byte of a float in a stream of its own; statistics
    for whole numbers only; a dictionary for texts; a checksum for every page.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415

    sink = _Sink()
    wholes = [name for name in schema.names if name not in {*floats, *texts}]
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=cast("Any", list(texts)),
        use_byte_stream_split=cast("Any", list(floats)),
        write_statistics=cast("Any", wholes),
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            yield from sink.taken()
        if label is not None:
            writer.add_key_value_metadata({_KEY: label.encode()})
    yield from sink.taken()


def encode_blocks(
    blocks: Iterable[ReadingBlock], piece: Piece, attempt: int, series: Sequence[str], rows: int
) -> Iterator[bytes]:
    """The bytes of the table `piece` of an attempt, in row groups of `rows`."""
    label = {"format": 1, "attempt": attempt, "first": piece.first, "last": piece.last}
    groups = (wide_table(block) for block in _in_groups(blocks, rows))
    return encode_tables(groups, _schema(series), series, label=json.dumps(label))


@final
class TableFile:
    """A table of readings that is open; its layout is checked, its values when they are read.

    Raises:
        JournalError: it is damaged, forged, or not the table that its name says.
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, file: BinaryIO, name: str, piece: Piece, attempt: int) -> None:
        require_pyarrow()
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.parquet as pq  # noqa: PLC0415

        self._name = name
        self._file = file
        with self._told():
            self._parquet = pq.ParquetFile(
                pa.PythonFile(file, mode="r"), pre_buffer=False, page_checksum_verification=True
            )
            self._metadata = self._parquet.metadata
            names = self._layout()
            label = json.loads((self._metadata.metadata or {}).get(_KEY, b"null"))
        expected = {"format": 1, "attempt": attempt, "first": piece.first, "last": piece.last}
        if label != expected:
            raise JournalError(
                f"{name} is not the table that its name says: it holds {label!r:.80}"
            )
        self.series: tuple[str, ...] = tuple(names[len(COLUMNS) :])
        self.num_groups: int = self._metadata.num_row_groups
        self.group_rows = [self._metadata.row_group(at).num_rows for at in range(self.num_groups)]
        if min(self.group_rows, default=0) < 0 or max(self.group_rows, default=0) > _MAX_GROUP_ROWS:
            raise JournalError(f"{name} claims impossibly large row groups; it is forged.")
        if self.num_rows != self._metadata.num_rows:
            raise JournalError(f"{name} says two numbers of rows: restore it from a copy.")
        self._ranges: list[tuple[int, int] | None] | None = None

    @property
    def num_rows(self) -> int:
        """Steps in it."""
        return sum(self.group_rows)

    def groups_in(self, steps: Steps) -> list[int]:
        """The row groups that may hold any of these steps."""
        first, last = steps
        if first is None and last is None:
            return list(range(self.num_groups))
        if self._ranges is None:
            with self._told():
                self._ranges = [self._range(at) for at in range(self.num_groups)]
        return [
            at
            for at, found in enumerate(self._ranges)
            if found is None
            or ((first is None or found[1] >= first) and (last is None or found[0] <= last))
        ]

    def read(
        self, groups: Sequence[int], series: Sequence[str], wanted: Steps = (None, None)
    ) -> Iterator[ReadingBlock]:
        """The rows of these row groups, in blocks of bounded size; of these series only.

        Rows before the first and after the last one of the steps wanted are left out.
        """
        for some in self._batches(groups, len(series)):
            with self._told():
                names = [*COLUMNS, *series]
                table = self._parquet.read_row_groups(some, columns=names, use_threads=False)
                rows = sum(self.group_rows[at] for at in some)
                if table.num_rows != rows:
                    raise JournalError(f"{self._name} holds fewer rows than it claims.")
                begin, end = _span(table.column("step").to_numpy(), wanted)
                table, rows = table.slice(begin, end - begin), end - begin
                block = ReadingBlock(
                    attempt=0,
                    series=tuple(series),
                    steps=table.column("step").to_numpy().copy(),
                    flags=table.column("flags").to_numpy().copy(),
                    values=np.empty((len(series), rows), np.float32).T,
                    torn_bytes=0,
                )
                for at, name in enumerate(series):
                    _fill(block.values[:, at], table.column(name))
            yield block

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _layout(self) -> list[str]:
        """The names of the columns, if they are what a table of readings has."""
        schema = self._metadata.schema
        if len(schema) != self._metadata.num_columns or len(schema) <= len(COLUMNS):
            raise ValueError("it has no series")
        columns = [schema.column(at) for at in range(len(schema))]
        names = [column.name for column in columns]
        kinds = ["INT64", "INT32", *["FLOAT"] * (len(names) - len(COLUMNS))]
        flat = all(one.max_repetition_level == 0 and one.name == one.path for one in columns)
        if not flat or [column.physical_type for column in columns] != kinds:
            raise ValueError("its columns are not those of readings")
        if tuple(names[: len(COLUMNS)]) != COLUMNS or len(set(names)) != len(names):
            raise ValueError("its columns are not named as those of readings")
        if any(one.max_definition_level for one in columns[: len(COLUMNS)]):
            raise ValueError("its steps may be missing")
        return names

    def _range(self, group: int) -> tuple[int, int] | None:
        found = self._metadata.row_group(group).column(0).statistics
        if found is None or not found.has_min_max:
            return None
        return int(found.min), int(found.max)

    def _batches(self, groups: Sequence[int], num_series: int) -> Iterator[list[int]]:
        some: list[int] = []
        held = 0
        for at in groups:
            size = self.group_rows[at] * (num_series + len(COLUMNS))
            if some and held + size > _AT_ONCE:
                yield some
                some, held = [], 0
            some.append(at)
            held += size
        if some:
            yield some

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (JournalError, MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:  # pyarrow's errors have many bases
            raise JournalError(
                f"{self._name} is no readable table of readings ({one_line(str(error), 160)}): "
                "restore it from a copy."
            ) from error


def _schema(series: Sequence[str]) -> "pa.Schema":
    import pyarrow as pa  # noqa: PLC0415

    fields = [pa.field("step", pa.int64(), nullable=False)]
    fields += [pa.field("flags", pa.int32(), nullable=False)]
    return pa.schema(fields + [pa.field(name, pa.float32()) for name in series])


def _span(steps: npt.NDArray[np.int64], wanted: Steps) -> tuple[int, int]:
    """The rows from the first to the last one that holds a step wanted."""
    first, last = wanted
    if first is None and last is None:
        return 0, len(steps)
    inside = np.ones(len(steps), np.bool_) if first is None else steps >= first
    if last is not None:
        inside &= steps <= last
    rows = np.flatnonzero(inside)
    return (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)


def _fill(target: npt.NDArray[np.float32], column: "pa.ChunkedArray") -> None:
    at = 0
    for chunk in column.chunks:
        into = target[at : at + len(chunk)]
        if chunk.null_count:
            data = chunk.buffers()[1]
            if data is None:
                into[:] = ABSENT
            else:
                into[:] = np.frombuffer(data, "<f4")[chunk.offset : chunk.offset + len(chunk)]
                into[chunk.is_null().to_numpy(zero_copy_only=False)] = ABSENT
        else:
            into[:] = chunk.to_numpy()
        at += len(chunk)


def _in_groups(blocks: Iterable[ReadingBlock], rows: int) -> Iterator[ReadingBlock]:
    """The same readings, cut and joined so that every block but the last has `rows` rows."""
    held: list[ReadingBlock] = []
    num_held = 0
    for block in blocks:
        held.append(block)
        num_held += len(block.steps)
        while num_held >= rows:
            whole = join(held)
            yield part(whole, slice(0, rows))
            held, num_held = [part(whole, slice(rows, None))], num_held - rows
    if num_held:
        yield join(held)


@final
class _Sink:
    """A file for pyarrow to write to, whose bytes are taken out as they come."""

    closed = False

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        self._chunks.append(chunk)
        self._size += len(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def taken(self) -> list[bytes]:
        chunks, self._chunks = self._chunks, []
        return chunks
