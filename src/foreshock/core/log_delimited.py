"""Text tables with a header: which character parts the fields, and what a line holds."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foreshock.core.text_reader import number

_DELIMITERS = ",\t;|"
_DECIMAL_COMMA = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})*,\d+(?:[eE][-+]?\d+)?\Z|[-+]?\d+,\d+\Z")
_MAX_HEADER_CHARS = 1 << 16
_MAX_COLUMNS = 2000
_MAX_PREAMBLE = 30
_NO_NAME = re.compile(r"[\n=]|: ")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How the lines of a table are cut into fields.

    Attributes:
        delimiter: one character.
        header: names of the columns.
        place: which of the lines given is the header.
        decimal_comma: whether `1.234,5` means 1234.5.
    """

    delimiter: str
    header: tuple[str, ...]
    place: int
    decimal_comma: bool = False

    def fields(self, line: str) -> list[str]:
        """The fields of a line. A quoted field ends on the line that it begins on."""
        cut = cut_line(line, self.delimiter)
        if self.decimal_comma:
            return [_point(field) if "," in field else field for field in cut]
        return cut


def cut_line(line: str, delimiter: str) -> list[str]:
    """The fields of a line, quoted or not.

    >>> cut_line('1,"2,5",', ","), cut_line('"1","","3"', ",")
    (['1', '2,5', ''], ['1', '', '3'])
    """
    if '"' not in line:
        return line.split(delimiter)
    if line[0] == line[-1] == '"':
        found = line[1:-1].split(f'"{delimiter}"')
        if line.count('"') == 2 * len(found):
            return found
    try:
        for fields in csv.reader([line], delimiter=delimiter):
            return fields
    except csv.Error:
        pass
    return line.replace('"', "").split(delimiter)


def find_dialect(lines: Sequence[str]) -> Dialect | None:
    """How a table is written, from its first lines; None if they are no table.

    A header names at least two columns and holds no number; below it, lines have as many
    fields as it does, half of them numbers. Comments and empty lines may stand before it.
    """
    lines = [line[: 2 * _MAX_HEADER_CHARS] for line in lines]
    best: tuple[float, Dialect] | None = None
    for place, line in enumerate(lines[:_MAX_PREAMBLE]):
        if not line.strip() or len(line) > _MAX_HEADER_CHARS:
            continue
        for delimiter in _DELIMITERS:
            if delimiter not in line:
                continue
            header = header_of(line, delimiter)
            if header is None:
                continue
            score, header = _score(header, delimiter, lines[place + 1 : place + 60])
            if score > 0 and (best is None or score > best[0]):
                best = score, Dialect(delimiter=delimiter, header=header, place=place)
        if best is not None:
            break
    if best is None:
        return None
    dialect = best[1]
    below = lines[dialect.place + 1 : dialect.place + 60]
    if dialect.delimiter == "," or not _has_decimal_comma(below, dialect.delimiter):
        return dialect
    return Dialect(
        delimiter=dialect.delimiter,
        header=dialect.header,
        place=dialect.place,
        decimal_comma=True,
    )


def header_of(line: str, delimiter: str) -> tuple[str, ...] | None:
    """The names on a line, if it can be a header: unique names, no numbers among them."""
    text = line.lstrip("\ufeff# ") if line[:1] in "\ufeff#" else line
    names = [name.strip() for name in cut_line(text, delimiter)]
    if not 2 <= len(names) <= _MAX_COLUMNS:
        return None
    named = [name for name in names if name]
    if len(named) < max(1, len(names) - 1) or len(set(names)) < len(names):
        return None
    if any(number(name) is not None or len(name) > 300 or _NO_NAME.search(name) for name in named):
        return None
    return tuple(names)


def rows_below(
    lines: Iterator[tuple[int, str]], dialect: Dialect
) -> Iterator[tuple[int, list[str]]]:
    """Each line that is not empty, with its fields."""
    fields = dialect.fields
    for line_number, line in lines:
        if line and not line.isspace():
            yield line_number, fields(line)


def _score(
    header: tuple[str, ...], delimiter: str, below: Sequence[str]
) -> tuple[float, tuple[str, ...]]:
    """How well the lines below fit a header; with one more field than names, the first is an
    index without a name."""
    cut = [cut_line(line, delimiter) for line in below if line.strip()]
    if not cut:
        return 0.0, header
    if sum(len(one) == len(header) + 1 for one in cut) > 0.6 * len(cut) and "" not in header:
        header = ("", *header)
    fitting = [one for one in cut if len(one) == len(header) and _is_data(one)]
    # The last line may be cut, so of two lines one is enough.
    if len(fitting) < 0.6 * max(1, len(cut) - 1) or not fitting:
        return 0.0, header
    return len(fitting) / len(cut) + min(len(header), 100) / 1000, header


def _is_data(fields: Sequence[str]) -> bool:
    shown = [field for field in fields if field.strip()]
    numbers = sum(number(field) is not None for field in shown)
    return numbers > 0 and 3 * numbers >= len(shown)


def _has_decimal_comma(lines: Sequence[str], delimiter: str) -> bool:
    fields = [field.strip() for line in lines for field in cut_line(line, delimiter)]
    commas = [field for field in fields if "," in field and number(field) is not None]
    return bool(commas) and all(_DECIMAL_COMMA.match(field) for field in commas)


def _point(field: str) -> str:
    return field.replace(".", "").replace(",", ".")
