"""The fixed text around a record's numbers, learnt from one line: the next lines of the same
shape are then read by one pattern."""

import re
from collections.abc import Callable, Sequence

from foreshock.core.log_builder import Growing, LogBuilder

MAX_SHAPES = 6
"""Shapes that one log may have; lines of other shapes are read the long way."""
_MAX_TRIES = 24
_MAX_CHARS = 1_500
_MAX_KEPT = 4_096
_KEPT = r"([-+.\deE]+|[-+]?[nN][aA][nN]|[-+]?[iI]nf(?:inity)?|[-+]?INF)"
_OTHER = re.compile(r"(\d[-+.:\d]*)|(\s+)")

Record = tuple[int | None, list[tuple[str, float]], int | None]
"""Step, labelled values and rank."""


Check = Callable[[Sequence[float]], bool]
"""Whether the numbers of a record, in the order of the line, are nothing out of the ordinary."""


class Shape:
    """One shape: its pattern, what the numbers are, and records read but not handed on yet.

    Attributes:
        match: of a line, against the pattern.
        is_whole: no line of this shape is continued by the next one.
    """

    __slots__ = ("_check", "_columns", "_labels", "_lines", "_log", "_rank", "_step_place",
                 "_values", "is_whole", "match")  # fmt: skip

    def __init__(
        self, log: LogBuilder, pattern: str, labels: list[str], step_place: int, rank: int | None
    ) -> None:
        self.match = re.compile(pattern).match
        self.is_whole = False
        self._log = log
        self._labels = labels
        self._step_place = step_place
        self._rank = rank
        self._check: Check | None = None
        self._columns: list[Growing] | None = None
        self._values: list[float] = []
        self._lines: list[int] = []

    def read(self, match: "re.Match[str]") -> Record | None:
        """A record as step, labelled values and rank; None if it is none (`1.2.3`)."""
        try:
            values = list(map(float, match.groups()))
            step = int(values.pop(self._step_place)) if self._step_place >= 0 else None
        except (ValueError, OverflowError):
            return None
        return step, list(zip(self._labels, values, strict=True)), self._rank

    def admit(self, check: Callable[[Sequence[str]], Check | None]) -> None:
        """Let records be kept, if the check on the labels' numbers lets them."""
        labels = list(self._labels)
        if self._step_place >= 0:
            labels.insert(self._step_place, "")
        self._check = check(labels)
        self.is_whole = self._rank is None

    def keep(self, match: "re.Match[str]", number: int) -> bool:
        """Keep a record for the log; False if it must be read otherwise."""
        try:
            values = list(map(float, match.groups()))
        except ValueError:
            return False
        if self._check is not None and not self._check(values):
            return False
        self._values += values
        self._lines.append(number)
        if len(self._lines) >= _MAX_KEPT:
            self.flush()
        return True

    def flush(self) -> None:
        """Hand what was kept to the log, in the order of the file."""
        if not self._lines:
            return
        if self._columns is None:
            self._columns = self._log.columns_of(self._labels)
        values, lines = self._values, self._lines
        self._values, self._lines = [], []
        width = len(values) // len(lines)
        columns = [values[place::width] for place in range(width)]
        steps: Sequence[float | None] = (
            columns.pop(self._step_place) if self._step_place >= 0 else [None] * len(lines)
        )
        if self._columns is not None:
            self._log.rows(steps, self._columns, columns, lines)
            return
        for step, line, *own in zip(steps, lines, *columns, strict=True):
            whole = None if step is None or not abs(step) < 1 << 62 else int(step)
            self._log.row(whole, zip(self._labels, own, strict=True), line=line)


class Shapes:
    """Lines of a log that differ in their numbers alone.

    What a shape reads is what the line that taught it gave when read the long way; every
    other text of a line, and so its labels, must be the same.

    >>> shapes = Shapes(LogBuilder())
    >>> shapes.learn("s:7 loss:2.50 (3 ms)", (2, 3), [("loss", 9, 13)], rank=None, fixed=0)
    >>> shapes.read("s:8 loss:nan (41 ms)")
    (8, [('loss', nan)], None)
    >>> shapes.read("s:8 loss:2.25 acc:0.5 (41 ms)") is None
    True
    """

    __slots__ = ("_log", "_num_tries", "known")

    def __init__(self, log: LogBuilder) -> None:
        self._log = log
        self._num_tries = 0
        self.known: list[Shape] = []
        """Learnt last first."""

    @property
    def is_full(self) -> bool:
        """Whether no further shape is learnt."""
        return len(self.known) >= MAX_SHAPES or self._num_tries >= _MAX_TRIES

    def forget(self) -> None:
        """Drop the shape that was learnt last."""
        del self.known[:1]

    def read(self, line: str) -> Record | None:
        """The record of a line of a known shape; None if it is of none."""
        for shape in self.known:
            if (match := shape.match(line)) is not None:
                return shape.read(match)
        return None

    def learn(
        self,
        line: str,
        step: tuple[int, int] | None,
        values: Sequence[tuple[str, int, int]],
        *,
        rank: int | None,
        fixed: int,
    ) -> None:
        """Take the shape of a line.

        Args:
            line: with one record on it.
            step: place and end of the step in the line, if it has one.
            values: label, place and end of each value.
            rank: of the process that printed it.
            fixed: the first characters, that must be the same (they name the rank).
        """
        self._num_tries += 1
        slots = sorted(values, key=lambda value: value[1])
        labels = [label for label, _, _ in slots]
        step_place = -1
        if step is not None:
            step_place = sum(start < step[0] for _, start, _ in slots)
            slots.insert(step_place, ("", *step))
        if len(line) > _MAX_CHARS or len(self.known) >= MAX_SHAPES or not values:
            return
        parts = [re.escape(line[:fixed])]
        place = fixed
        for _, start, end in slots:
            if start < place or end <= start or _touches(line, start, end):
                return
            parts += [_between(line[place:start]), _KEPT]
            place = end
        parts += [_between(line[place:].rstrip()), r"\s*\Z"]
        self.known.insert(0, Shape(self._log, "".join(parts), labels, step_place, rank))


def _touches(line: str, start: int, end: int) -> bool:
    """Whether a value is a part of something longer (a date, a version)."""
    before, after = line[start - 1 : start], line[end : end + 1]
    return bool(before.isdigit() or after.isdigit()) or before in ("-", "+", ".", "_")


def _between(text: str) -> str:
    """A pattern of the text between two values: words as they are, other numbers as numbers."""
    parts: list[str] = []
    place = 0
    for found in _OTHER.finditer(text):
        parts.append(re.escape(text[place : found.start()]))
        if found[2]:
            parts.append(r"\s*" if _by_number(text, found) else r"\s+")
        elif found[1].isdigit():
            parts.append(r"\d+")
        else:
            parts.append(r"\d+[-+.:][-+.:\d]*")
        place = found.end()
    parts.append(re.escape(text[place:]))
    return "".join(parts)


def _by_number(text: str, blank: "re.Match[str]") -> bool:
    """Whether a blank stands beside a number, which may be wider on another line."""
    after = text[blank.end() : blank.end() + 1]
    before = text[: blank.start()][-1:]
    return after == "" or before == "" or after.isdigit() or before.isdigit()
