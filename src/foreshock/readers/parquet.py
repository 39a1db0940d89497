"""Parquet tables, such as W&B's history artifacts and what pandas writes."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, ClassVar

from foreshock.core.errors import LogError, MissingExtra
from foreshock.core.log_builder import LogBuilder, LogFull
from foreshock.core.log_columns import guess_roles, is_noise
from foreshock.core.log_table import BLOCK_ROWS, NUM_SAMPLED, RowTaker
from foreshock.core.reader import Reader, Sample, Source
from foreshock.core.text import one_line

_MAGIC = b"PAR1"
_BATCH_ROWS = 8192
_MAX_COLUMNS = 1000
_MAX_GROUP_BYTES = 4 << 30

Table = tuple[list[str], Iterator[tuple[Any, ...]]]


class Parquet(Reader):
    """Columns `step`, `train/loss`, `train/grad_norm`, …: a table, read batch by batch.

    Columns are guessed as in CSV. pandas writes NaN as null: a row that lacks only its loss
    is one with NaN. Columns of lists and structures are left out. Needs pyarrow, which the
    extra `logs` brings.
    """

    name: ClassVar[str] = "parquet"
    title: ClassVar[str] = "Parquet"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        return 0.9 if sample.head[:4] == _MAGIC else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        try:
            import pyarrow  # noqa: F401, PLC0415
        except ImportError as error:
            raise MissingExtra(
                "Parquet is read with pyarrow, which is not installed: "
                "pip install 'foreshock[logs]'"
            ) from error
        try:
            names, rows = _open(source.local_path(), log)
            _give(names, rows, log)
        except (LogError, LogFull):
            raise
        except Exception as error:  # pyarrow's errors have many bases
            said = one_line(str(error), 120)
            if not log.num_rows:
                raise LogError(f"{source.name} is no readable Parquet: {said}") from error
            log.note(f"reading stopped at a damaged part: {said}")


def _open(path: str, log: LogBuilder) -> Table:
    """The columns that may hold numbers or words, and the rows."""
    import pyarrow.parquet as pq  # noqa: PLC0415
    import pyarrow.types as kinds  # noqa: PLC0415

    file = pq.ParquetFile(path, memory_map=False)
    names: list[str] = []
    for field in file.schema_arrow:
        is_text = kinds.is_string(field.type) or kinds.is_large_string(field.type)
        is_text = is_text or kinds.is_dictionary(field.type)
        is_number = kinds.is_integer(field.type) or kinds.is_floating(field.type)
        named = field.name in log.wanted or not is_noise(field.name)
        if (is_number or is_text) and named:
            names.append(field.name)
    if not names:
        raise LogError(f"{path} has no columns of numbers")
    if len(names) > _MAX_COLUMNS:
        log.note(f"only the first {_MAX_COLUMNS} columns were read")
        names = names[:_MAX_COLUMNS]
    return names, _rows(file, names, log)


def _rows(file: Any, names: list[str], log: LogBuilder) -> Iterator[tuple[Any, ...]]:
    for group in range(file.num_row_groups):
        if file.metadata.row_group(group).total_byte_size > _MAX_GROUP_BYTES:
            log.note(f"a row group of more than {_MAX_GROUP_BYTES >> 30} GiB was skipped")
            continue
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
            columns = [batch.column(name).to_pylist() for name in names]
            yield from zip(*columns, strict=True)


def _give(names: list[str], rows: Iterator[tuple[Any, ...]], log: LogBuilder) -> None:
    head = list(islice(rows, NUM_SAMPLED))
    objects = [dict(zip(names, row, strict=True)) for row in head]
    taker = RowTaker(log, guess_roles(objects, log.wanted))
    layout = taker.layout([(name, place) for place, name in enumerate(names)])
    every = chain(head, rows)
    while block := list(islice(every, BLOCK_ROWS)):
        start = log.num_lines + 1
        numbers = range(start, start + len(block))
        if not taker.take_block(block, layout, numbers):
            for number, row in zip(numbers, block, strict=True):
                taker.take(row, layout, number)
        log.num_lines += len(block)
    taker.finish()
