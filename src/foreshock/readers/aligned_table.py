"""Tables whose columns are parted by blanks: fastai, spaCy, and what people print."""

import re
from collections.abc import Iterator
from typing import ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import is_noise
from foreshock.core.log_names import signal_of, step_place
from foreshock.core.reader import Reader, Sample, Source
from foreshock.core.text_reader import number, whole

_WIDE = re.compile(r"\s{2,}|\t")
_CLOCK = re.compile(r"\A(?:\d{1,3}:)?\d{1,3}:\d\d\Z|\A#na#\Z|\A[-–]+\Z|\ANone\Z")
_RULE = re.compile(r"\A[\s\-=─━+]+\Z")
_NAME = re.compile(r"\A(?:[A-Za-z][\w ./%()-]{0,40}|#)\Z")
_STEPS = {"#": 0, "epoch": 5, "epochs": 5, "e": 6}
_MIN_NAMES, _MAX_NAMES = 3, 40


class AlignedTable(Reader):
    """`epoch  train_loss  valid_loss  time`, then `0  0.636991  0.503566  00:00`.

    A header names an epoch or a step, and a loss; each row below has as many fields, numbers
    or times. Names with blanks in them stand two blanks apart (spaCy's `E  #  LOSS TOK2VEC
    LOSS NER  SCORE`, where `#` counts the steps and losses are sums since the row before).
    Another header begins another run if the steps begin anew.
    """

    name: ClassVar[str] = "aligned_table"
    title: ClassVar[str] = "columns parted by blanks (fastai, spaCy)"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        rows = list(_rows(enumerate(sample.lines, 1), LogBuilder()))
        return 0.4 if len(rows) >= 2 else 0.22 if rows else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        for step, pairs, line in _rows(source.lines(), log):
            log.row(step, pairs, line=line)


def _rows(
    lines: Iterator[tuple[int, str]], log: LogBuilder
) -> Iterator[tuple[int | None, list[tuple[str, float]], int]]:
    names: list[str] = []
    where: int | None = None
    for number_, line in lines:
        log.num_lines = number_
        if len(line) > 1000 or not line.strip() or _RULE.match(line):
            continue
        if names:
            fields = line.split()
            if len(fields) == len(names) and (row := _numbers(fields)) is not None:
                step = None if where is None else whole(fields[where])
                yield (
                    step,
                    [
                        (name, value)
                        for place, (name, value) in enumerate(zip(names, row, strict=True))
                        if value is not None and place != where and _is_kept(name)
                    ],
                    number_,
                )
                continue
        if "oss" in line or "OSS" in line:
            found = _header(line)
            if found:
                names = found
                places = [(_place(name), at) for at, name in enumerate(names)]
                best = min(places)
                where = best[1] if best[0] < 1000 else None


def _header(line: str) -> list[str]:
    for names in ([one for one in _WIDE.split(line.strip()) if one], line.split()):
        if not _MIN_NAMES <= len(names) <= _MAX_NAMES or len(set(names)) < len(names):
            continue
        if not all(_NAME.match(name) for name in names) or min(map(_place, names)) >= 1000:
            continue
        if any("loss" in name.lower() for name in names):
            return names
    return []


def _place(name: str) -> int:
    return min(step_place(name), _STEPS.get(name.lower(), 1000))


def _is_kept(name: str) -> bool:
    return not is_noise(name) and signal_of(name)[0] != "e"


def _numbers(fields: list[str]) -> list[float | None] | None:
    """The numbers of a row, None for times; None if it is no row."""
    row: list[float | None] = []
    for field in fields:
        value = number(field)
        if value is None and not _CLOCK.match(field):
            return None
        row.append(value)
    return row if sum(value is not None for value in row) >= _MIN_NAMES - 1 else None
