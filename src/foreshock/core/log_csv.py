"""Gives a text table with a header to a builder."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import as_step, guess_roles
from foreshock.core.log_delimited import Dialect, find_dialect, header_of, rows_below
from foreshock.core.log_table import BLOCK_ROWS, NUM_SAMPLED, Layout, RowTaker
from foreshock.core.reader import Source

NUM_PEEKED = 100
"""Lines that show how a table is written."""


def open_table(
    source: Source,
) -> tuple[Dialect, Iterator[tuple[int, list[str]]]] | None:
    """How the table in a file is written, and its rows; None if there is none."""
    lines = source.lines()
    head = list(islice(lines, NUM_PEEKED))
    dialect = find_dialect([line for _, line in head])
    if dialect is None:
        return None
    return dialect, rows_below(chain(head[dialect.place + 1 :], lines), dialect)


def take_table(
    dialect: Dialect,
    rows: Iterator[tuple[int, list[str]]],
    log: LogBuilder,
    names: Sequence[str] | None = None,
) -> None:
    """Give the rows of a table to the builder.

    Args:
        names: of the columns, if not those of the header; an empty one leaves a column out.

    Raises:
        LogFull: there is no room for more rows.
    """
    header = tuple(names or dialect.header)
    head = list(islice(rows, NUM_SAMPLED))
    taker = RowTaker(log, guess_roles(_as_objects(header, head), log.wanted))
    layout = _layout(taker, header)
    width = len(header)
    where: int | None = layout.step
    num_short, first_short = 0, 0
    number = 0
    block: list[list[str]] = []
    numbers: list[int] = []

    def give() -> None:
        if block and not taker.take_block(block, layout, numbers):
            for place, fields in zip(numbers, block, strict=True):
                if where is None or fields[where][:1].isdecimal() or not _repeats(fields, header):
                    taker.take(fields, layout, place)
        block.clear()
        numbers.clear()

    for number, fields in chain(head, rows):
        if len(fields) != width and (len(fields) < width or any(fields[width:])):
            num_short += 1
            first_short = first_short or number
            anew = header_of(dialect.delimiter.join(fields), dialect.delimiter)
            if anew is not None:
                give()
                header, width = anew, len(anew)
                layout = _layout(taker, header)
                where = layout.step
                num_short -= 1
            continue
        block.append(fields[:width])  # what may stand behind it is empty
        numbers.append(number)
        if len(block) >= BLOCK_ROWS:
            give()
    give()
    log.num_lines = number
    if num_short:
        log.note(
            f"{num_short} lines have other than {width} fields and were skipped; "
            f"line {first_short} first"
        )
    taker.finish()


def _layout(taker: RowTaker, header: Sequence[str]) -> Layout:
    return taker.layout([(name, place) for place, name in enumerate(header) if name])


def _repeats(fields: Sequence[str], header: Sequence[str]) -> bool:
    """Whether a row is the header once more, written by a run that appends."""
    return [field.strip() for field in fields] == list(header) and as_step(fields[0]) is None


def _as_objects(
    header: Sequence[str], rows: Sequence[tuple[int, list[str]]]
) -> list[dict[str, object]]:
    return [
        {name: field.strip() for name, field in zip(header, fields, strict=False) if name}
        for _, fields in rows
        if len(fields) == len(header) and tuple(fields) != tuple(header)
    ]
