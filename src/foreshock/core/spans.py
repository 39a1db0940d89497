"""Labelled numbers of a line, searched for once for each shape that lines have."""

from collections.abc import Callable, Sequence

from foreshock.core.line_shape import Arrangement, Record, Shapes
from foreshock.core.log_builder import LogBuilder
from foreshock.core.text_reader import number

Span = tuple[str, int, int]
"""Label, place and end of a number in a line."""

Find = Callable[[str], list[Span] | None]
Arrange = Callable[[Sequence[str]], Arrangement | None]
Settle = Callable[[Record, int], None]


class Spans:
    """Reads lines by a function that finds their numbers, or by the shapes it has met.

    Args:
        log: what the lines belong to.
        find: the numbers of a line; None if it is no record. It must depend on the text
            around numbers alone.
        arranged: of labels, how `keep` makes rows of records; nothing is kept without.
        settle: for `keep`, takes a record that is out of the ordinary.

    >>> spans = Spans(LogBuilder(), lambda line: [("loss", 5, len(line))])
    >>> spans.read("loss 2.5"), spans.read("loss nan"), spans.read("loss none")
    ([('loss', 2.5)], [('loss', nan)], None)
    """

    def __init__(
        self,
        log: LogBuilder,
        find: Find,
        arranged: Arrange | None = None,
        settle: Settle = lambda record, number: None,
    ) -> None:
        self._shapes = Shapes(log)
        self._find = find
        self._arranged = arranged
        self._settle = settle

    def keep(self, text: str, at: int, number_: int) -> tuple[int, int]:
        """Give the log the records of successive lines, if they are of a shape that is known.

        Args:
            text: whole lines.
            at: where one begins.
            number_: its number.

        Returns:
            How many lines were taken, and where the next one begins.
        """
        for shape in self._shapes.known:
            if shape.is_whole and (found := shape.match(text, at)):
                count, end = shape.keep(found, text, found.end(), number_)
                if count:
                    shape.flush()
                    return count, end
        return 0, at

    def read(self, line: str) -> list[tuple[str, float]] | None:
        """Label and value of each number of a line, in its order; None if it is no record."""
        known = self._shapes.read(line)
        if known is not None:
            return known[1]
        spans = self._find(line)
        if not spans:
            return None
        pairs = learnt(self._shapes, line, spans)
        if self._arranged is not None and self._shapes.known:
            newest = self._shapes.known[-1]
            if not newest.is_whole:
                newest.admit(self._arranged, self._settle)
        return pairs


def learnt(shapes: Shapes, line: str, spans: list[Span]) -> list[tuple[str, float]] | None:
    """The labelled values of a line, whose shape is known from then on; None if a number is
    none."""
    spans.sort(key=lambda span: span[1])
    pairs: list[tuple[str, float]] = []
    for label, start, end in spans:
        value = number(line[start:end])
        if value is None:
            return None
        pairs.append((label, value))
    if not shapes.is_full:
        shapes.learn(line, None, spans, rank=None, fixed=0)
        again = shapes.read(line)
        if again is not None and repr(again[1]) != repr(pairs):
            shapes.forget()
    return pairs
