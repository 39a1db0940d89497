"""Goes through the text of one log: which lines hold records, which continue them, which have a
shape that is known."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foreshock.core.line_shape import Record, Shape, Shapes
from foreshock.core.log_builder import LogBuilder

if TYPE_CHECKING:
    from foreshock.core.text_reader import TextReader


@dataclass(slots=True)
class Held:
    """A line with a record, that the next lines may continue."""

    number: int
    line: str
    known: Record | None
    match: "re.Match[str] | None"
    parts: list[str] = field(default_factory=list[str])


class Reading:
    """Where the reading of one log stands."""

    def __init__(self, reader: "TextReader", log: LogBuilder, hints: Sequence[str] | None) -> None:
        self._reader = reader
        self._log = log
        self._held: Held | None = None
        self.shapes = Shapes(log)
        self.active: Shape | None = None
        """Whose records the log has yet to get."""
        self._hints = hints

    def read(self, first: int, text: str) -> None:
        """Take in lines, of which the first has a number."""
        hint, search, known = self._reader.hint, self._reader.search, self.shapes.known
        number_, at, end = first, 0, len(text)
        while at < end:
            close = text.index("\n", at)
            line = text[at:close]
            found: re.Match[str] | None = None
            shape: Shape | None = None
            if hint in line:
                for shape in known:
                    if (found := shape.match(line)) is not None:
                        break
                else:
                    shape, found = None, search(line)
                if shape is not None and found is not None and shape.is_whole:
                    if shape is not self.active:
                        self.turn_to(shape)
                    count, at = shape.keep(found, text, close + 1, number_)
                    if count:
                        number_ += count
                        self._log.num_lines = number_ - 1
                        continue
            self._log.num_lines = number_
            self.take(number_, line, shape, found)
            number_, at = number_ + 1, close + 1

    def turn_to(self, shape: Shape | None) -> None:
        """Hand over what is held back, and let the shape hold back what follows."""
        if self.active is not None:
            self.active.flush()
        self.active = shape
        held, self._held = self._held, None
        if held is not None:
            self._reader.give(held, self._log, self.shapes)

    def take(
        self, number_: int, line: str, shape: Shape | None, found: "re.Match[str] | None"
    ) -> None:
        """Take in a line; `found` if it has a record, of a shape if it is of one."""
        if found is None:
            if (held := self._held) is not None:
                before = held.parts or [held.line]
                if len(held.parts) < self._reader.max_folded and self._reader.continues(
                    line, before
                ):
                    held.parts.append(line.strip())
                    return
            elif self._hints is not None and not any(hint in line for hint in self._hints):
                return  # it says nothing: what is kept may be kept on
            self.turn_to(None)
            self._reader.word(line, number_, self._log)
            return
        self.turn_to(None)
        known = shape.read(found) if shape is not None else None
        match = found if shape is None else None
        if shape is not None and known is None:
            match = self._reader.search(line)
        self._held = Held(number_, line, known, match)
        if not self._reader.folds:
            self.turn_to(None)
