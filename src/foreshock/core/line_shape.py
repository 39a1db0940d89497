"""The fixed text around a record's numbers, learnt from one line: the next lines of the same
shape are then read by one pattern, many at once."""

import math
import re
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, cast

from foreshock.core.log_builder import Growing, LogBuilder

MAX_SHAPES = 6
"""Shapes that one log may have; lines of other shapes are read the long way."""
_MAX_TRIES = 24
_MAX_CHARS = 1_500
_MAX_KEPT = 4_096
_MAX_AT_ONCE = 512
_KEPT = r"([-+.0-9eE]++|[-+]?[nN][aA][nN]|[-+]?[iI]nf(?:inity)?|[-+]?INF)"
"""Possessive, as all that follows: no number may be taken for two."""
_OTHER = re.compile(r"((?<=\()[-+]?)?([0-9][-+.:0-9]*)|(\s+)")

Record = tuple[int | None, list[tuple[str, float]], int | None]
"""Step, labelled values and rank."""

Columns = Sequence[Sequence[float]]
"""The numbers of records of one shape: `[N]` for each number of a line, in its order."""

Check = Callable[[Columns, int], int]
"""The place of the first record, from a place on, that is out of the ordinary; else `N`."""

Steps = Sequence[float | None]


class Arrangement(NamedTuple):
    """How records of one shape become rows.

    Attributes:
        labels: of the rows' columns.
        rows: gives the `[N]` steps of records and their columns.
        check: which records are to be settled one by one; None if none is.
    """

    labels: Sequence[str]
    rows: Callable[[Columns], tuple[Steps, Columns]]
    check: Check | None = None


class Shape:
    """One shape: its pattern, what the numbers are, and records read but not handed on yet.

    Attributes:
        match: of a line, against the pattern.
        is_whole: no line of this shape is continued by the next one, and it may be kept.
    """

    __slots__ = ("_arrangement", "_columns", "_labels", "_lines", "_log", "_rank", "_scanner",
                 "_settle", "_step_place", "_values", "example", "has_hint",
                 "is_whole", "match")  # fmt: skip

    def __init__(
        self, log: LogBuilder, pattern: str, labels: list[str], step_place: int, rank: int | None
    ) -> None:
        compiled = re.compile(pattern)
        self.match = compiled.match
        self._scanner = cast("Any", compiled).scanner
        self.is_whole = False
        self.example = ""
        """A line of the shape."""
        self.has_hint = True
        """Whether each line of the shape has the reader's hint."""
        self._log = log
        self._labels = labels
        self._step_place = step_place
        self._rank = rank
        self._arrangement: Arrangement | None = None
        self._settle: Callable[[Record, int], None] | None = None
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

    def admit(
        self,
        arranged: Callable[[Sequence[str]], Arrangement | None],
        settle: Callable[[Record, int], None],
    ) -> None:
        """Let records be kept.

        Args:
            arranged: says how, for labels as they stand on the line, the step's empty.
            settle: takes a record that is out of the ordinary, and its line.
        """
        labels = list(self._labels)
        if self._step_place >= 0:
            labels.insert(self._step_place, "")
        self._arrangement = arranged(labels)
        self._settle = settle
        own = self._arrangement.labels if self._arrangement is not None else ()
        self.is_whole = bool(own) and len(set(own)) == len(own) and self.has_hint

    def keep(self, found: "re.Match[str]", text: str, at: int, number: int) -> tuple[int, int]:
        """Keep the record of a line for the log, and those of lines behind it.

        Args:
            found: of the line.
            text: whole lines.
            at: where the one behind it begins.
            number: the line's number.

        Returns:
            How many lines were kept, and where the next one begins, which must be read
            otherwise; 0 if the line itself must.
        """
        try:
            self._values += list(map(float, found.groups()))
        except ValueError:
            return 0, at
        self._lines.append(number)
        count = 1
        match = self._scanner(text, at).match
        while (following := match()) is not None:
            several = [following, *islice(iter(match, None), _MAX_AT_ONCE)]
            texts = [one.groups() for one in several]
            try:
                values = list(map(float, chain.from_iterable(texts)))
            except ValueError:
                values = _good(texts)
                several = several[: len(values) // len(texts[0])]
            self._values += values
            self._lines += range(number + count, number + count + len(several))
            at = several[-1].end() if several else at
            count += len(several)
            if len(several) < len(texts):
                break
            if len(self._lines) >= _MAX_KEPT:
                self.flush()
        if len(self._lines) >= _MAX_KEPT:
            self.flush()
        return count, at

    def flush(self) -> None:
        """Hand what was kept to the log, in the order of the file."""
        if not self._lines or self._arrangement is None or self._settle is None:
            return
        values, lines = self._values, self._lines
        self._values, self._lines = [], []
        width = len(values) // len(lines)
        columns = [values[place::width] for place in range(width)]
        check = self._arrangement.check
        if check is None:
            self._give(columns, lines)
            return
        start, num_rows = 0, len(lines)
        while start < num_rows:
            end = check(columns, start)
            if end - start == num_rows:
                self._give(columns, lines)
            elif end > start:
                self._give([one[start:end] for one in columns], lines[start:end])
            if end < num_rows:
                self._settle(self._record([one[end] for one in columns]), lines[end])
            start = end + 1

    def _record(self, values: list[float]) -> Record:
        step = values.pop(self._step_place) if self._step_place >= 0 else None
        whole = None if step is None or not math.isfinite(step) else int(step)
        return whole, list(zip(self._labels, values, strict=True)), self._rank

    def _give(self, columns: Columns, lines: Sequence[int]) -> None:
        arrangement = cast("Arrangement", self._arrangement)
        steps, columns = arrangement.rows(columns)
        self._columns = self._columns or self._log.columns_of(arrangement.labels)
        if self._columns is not None:
            self._log.rows(steps, self._columns, columns, lines, rank=self._rank)
            return
        for step, line, *own in zip(steps, lines, *columns, strict=True):
            whole = None if step is None or not abs(step) < 1 << 62 else int(step)
            pairs = zip(arrangement.labels, own, strict=True)
            self._log.row(whole, list(pairs), line=line, rank=self._rank)


def as_they_are(labels: Sequence[str], check: Check | None = None) -> Arrangement:
    """The arrangement of a record whose numbers are its step and its values."""
    place = labels.index("") if "" in labels else -1

    def rows(columns: Columns) -> tuple[Steps, Columns]:
        if place < 0:
            return [None] * len(columns[0]), columns
        return columns[place], [*columns[:place], *columns[place + 1 :]]

    return Arrangement([label for label in labels if label], rows, check)


def _good(texts: Sequence[Sequence[str]]) -> list[float]:
    """The numbers of the first records, up to one that has none (`1.2.3`)."""
    values: list[float] = []
    for record in texts:
        try:
            values += list(map(float, record))
        except ValueError:
            break
    return values


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
        """Learnt first first. No later one fits the line that taught an earlier one: a damaged
        line must not speak for whole ones."""

    @property
    def is_full(self) -> bool:
        """Whether no further shape is learnt."""
        return len(self.known) >= MAX_SHAPES or self._num_tries >= _MAX_TRIES

    def forget(self) -> None:
        """Drop the shape that was learnt last."""
        del self.known[-1:]

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
        hint: str = "",
        same: tuple[int, int] = (0, 0),
    ) -> None:
        """Take the shape of a line.

        Args:
            line: with one record on it.
            step: place and end of the step in the line, if it has one.
            values: label, place and end of each value.
            rank: of the process that printed it.
            fixed: the first characters, that must be the same (they name the rank).
            hint: a text on the line that must be the same, if that can be.
            same: place and end of another text that must be the same.
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
        pattern = _Pattern(line, hint, same)
        for _, start, end in slots:
            if start < place or end <= start or _touches(line, start, end):
                return
            parts += [pattern.between(place, start), _KEPT]
            place = end
        parts += [pattern.between(place, len(line.rstrip())), r"[^\S\n]*+(?:\n|\Z)"]
        shape = Shape(self._log, "".join(parts), labels, step_place, rank)
        shape.example = line
        shape.has_hint = pattern.has_hint or hint in line[:fixed]
        if not any(shape.match(other.example) for other in self.known):
            self.known.append(shape)


def _touches(line: str, start: int, end: int) -> bool:
    """Whether a value is a part of something longer (a date, a version)."""
    before, after = line[start - 1 : start], line[end : end + 1]
    return bool(before.isdigit() or after.isdigit()) or before in ("-", "+", ".", "_")


class _Pattern:
    """Makes the pattern of a line, some of whose text stays as it is.

    Attributes:
        has_hint: whether each line that matches has the hint.
    """

    def __init__(self, line: str, hint: str, same: tuple[int, int]) -> None:
        self._line = line
        self._hint = hint
        self._same = same
        self.has_hint = not hint

    def between(self, start: int, end: int) -> str:
        """The pattern of the text between two values."""
        fixed: list[tuple[int, int]] = []
        if start <= self._same[0] < self._same[1] <= end:
            fixed.append(self._same)
        at = -1 if self.has_hint else self._line.find(self._hint, start, end)
        if at >= 0 and not any(low < at + len(self._hint) and at < high for low, high in fixed):
            self.has_hint = True
            fixed.append((at, at + len(self._hint)))
        parts: list[str] = []
        first = start
        for low, high in sorted(fixed):
            parts += [_between(self._line, start, first, low), re.escape(self._line[low:high])]
            first = high
        return "".join([*parts, _between(self._line, start, first, end)])


def _between(line: str, start: int, place: int, end: int) -> str:
    """A pattern of a text, from a place on, between two values, of which one ends at `start`:
    words as they are, other numbers as numbers."""
    parts: list[str] = []
    text, place = line[start:end], place - start
    for found in _OTHER.finditer(text, place):
        parts.append(re.escape(text[place : found.start()]))
        if found[3]:
            some = " " if not found[3].strip(" ") else r"[^\S\n]"
            parts.append(f"{some}*+" if _by_number(text, found) else f"{some}++")
        else:
            sign = "[-+]?" if found[1] is not None else ""
            parts.append(f"{sign}[0-9]++" + ("" if found[2].isdigit() else "[-+.:][-+.:0-9]*+"))
        place = found.end()
    parts.append(re.escape(text[place:]))
    return "".join(parts)


def _by_number(text: str, blank: "re.Match[str]") -> bool:
    """Whether a blank stands beside a number, which may be wider on another line."""
    after = text[blank.end() : blank.end() + 1]
    before = text[: blank.start()][-1:]
    return after == "" or before == "" or after.isdigit() or before.isdigit()
