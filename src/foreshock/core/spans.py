"""Labelled numbers of a line, searched for once for each shape that lines have."""

from collections.abc import Callable

from foreshock.core.line_shape import Shapes
from foreshock.core.log_builder import LogBuilder
from foreshock.core.text_reader import number

Span = tuple[str, int, int]
"""Label, place and end of a number in a line."""

Find = Callable[[str], list[Span] | None]


class Spans:
    """Reads lines by a function that finds their numbers, or by the shapes it has met.

    Args:
        log: what the lines belong to.
        find: the numbers of a line; None if it is no record. It must depend on the text
            around numbers alone.

    >>> spans = Spans(LogBuilder(), lambda line: [("loss", 5, len(line))])
    >>> spans.read("loss 2.5"), spans.read("loss nan"), spans.read("loss none")
    ([('loss', 2.5)], [('loss', nan)], None)
    """

    def __init__(self, log: LogBuilder, find: Find) -> None:
        self._shapes = Shapes(log)
        self._find = find

    def read(self, line: str) -> list[tuple[str, float]] | None:
        """Label and value of each number of a line, in its order; None if it is no record."""
        known = self._shapes.read(line)
        if known is not None:
            return known[1]
        spans = self._find(line)
        if not spans:
            return None
        spans.sort(key=lambda span: span[1])
        pairs: list[tuple[str, float]] = []
        for label, start, end in spans:
            value = number(line[start:end])
            if value is None:
                return None
            pairs.append((label, value))
        if not self._shapes.is_full:
            self._shapes.learn(line, None, spans, rank=None, fixed=0)
            again = self._shapes.read(line)
            if again is not None and repr(again[1]) != repr(pairs):
                self._shapes.forget()
        return pairs
