"""Bare columns of numbers: a step, a loss, nothing else."""

from itertools import pairwise
from typing import ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.reader import Sample, Source
from foreshock.core.text_reader import NUMBER, TextReader, number, whole

_MIN_ROWS = 5
_SHARE = 0.6


class Columns(TextReader):
    r"""`1200 2.4413`, a line for a step.

    Nothing names the columns: the first rises and is taken for the step, the second for the
    loss; others keep their place as a name. Lines of words between them are skipped.
    """

    name: ClassVar[str] = "columns"
    title: ClassVar[str] = "bare columns (step, loss)"
    record = rf"\A\s*(?P<step>\d{{1,15}})[ \t]+(?P<rest>{NUMBER}(?:[ \t]+{NUMBER}){{0,6}})\s*\Z"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        lines = [line for line in sample.lines if line and not line.isspace()]
        found = [match for line in lines if (match := self._record.match(line))]
        if len(found) < _MIN_ROWS or len(found) < _SHARE * len(lines):
            return 0.0
        steps = [int(match["step"]) for match in found]
        num_rises = sum(a < b for a, b in pairwise(steps))
        return 0.2 if num_rises >= 0.8 * (len(steps) - 1) else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        match_of = self._record.match
        log.note("the columns have no names: the first is taken for the step, the next the loss")
        for number_, line in source.lines():
            log.num_lines = number_
            match = match_of(line)
            if match is None:
                if line:
                    self.word(line, number_, log)
                continue
            values = [number(text) for text in match["rest"].split()]
            log.row(
                whole(match["step"]),
                [
                    ("loss" if place == 2 else f"column {place}", value)
                    for place, value in enumerate(values, 2)
                    if value is not None
                ],
                line=number_,
            )
