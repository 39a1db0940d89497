"""Any text whose lines name a step and a loss: hand-written loops, notes, unknown trainers."""

import re
from collections.abc import Sequence
from typing import ClassVar

from foreshock.core.epoch_steps import EpochSteps, count_of
from foreshock.core.keyed_lines import (
    COUNTERS,
    STEP_PATTERN,
    counters_in,
    is_loss,
    may_hold,
    values_in,
)
from foreshock.core.line_shape import Arrangement, Columns, Record, Shapes, Steps
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.reader import Sample
from foreshock.core.spans import Span, learnt
from foreshock.core.text_reader import Held, TextReader

_MIN_RECORDS = 3
_MANY = 20
_MAX_TRIED = 400


class KeyedText(TextReader):
    """`Step [20/900], Loss: 2.31, LR: 1e-4` or `- iter 1300: loss 1.2, **grad norm 8.1**`.

    The fallback: a line is a record if it names a step (or iteration, update, batch, epoch,
    episode) and a loss or gradient norm, each with its number behind it; a range is none.
    Labels that are not known need a colon or an equals sign. Swin prints `Train:
    [3/300][50/1251]`, timm `Train: 3 [  50/1251 (  4%)]`: an epoch, and the steps of it.
    """

    name: ClassVar[str] = "keyed_text"
    title: ClassVar[str] = "text with steps and losses"
    specificity = 0.25
    record = STEP_PATTERN
    drops = rf"{COSTS}|\.py\Z|(?i:\A(?:line|rank|pid|seed|node|size|world_size|batch_size|bs)\Z)"

    _steps: EpochSteps
    _has_steps = False
    _spans: Sequence[Span] = ()

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        lines = [line for line in sample.lines if line and not line.isspace()]
        candidates = [line for line in lines if may_hold(line)]
        stride = len(candidates) // _MAX_TRIED + 1
        found = 0
        for line in candidates[::stride]:
            found += stride * (self._find(line) is not None)
            if found >= _MANY * stride:
                return self.specificity
        if found >= _MIN_RECORDS and found > 0.02 * len(lines):
            return self.specificity
        return 0.8 * self.specificity if found and 2 * found > len(lines) else 0.0

    def begin(self) -> None:
        self._steps = EpochSteps(may_run_on=True)

    def search(self, line: str) -> "re.Match[str] | None":
        self._spans = (self._find(line) if may_hold(line) else None) or []
        return self._record.search(line) if self._spans else None

    def give(self, held: Held, log: LogBuilder, shapes: Shapes) -> None:
        line, pairs = held.line, held.known and held.known[1]
        if pairs is None and held.match is not None:
            num_known = len(shapes.known)
            pairs = learnt(shapes, line, list(self._spans))
            if len(shapes.known) > num_known and self._rank(None, line) is None:
                shapes.known[-1].admit(
                    lambda labels: self.arranged(labels, log),
                    lambda record, number_: self.settle(record, number_, log),
                )
        if pairs is None:
            self.word(line, held.number, log)
        else:
            self.settle((None, pairs, self._rank(None, line)), held.number, log)

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        pairs = [pair for pair in record[1] if pair[0] not in COUNTERS]
        counted = {label: count_of(value) for label, value in record[1] if label in COUNTERS}
        step, epoch, of = (counted.get(label) for label in COUNTERS)
        is_test = _is_test([label for label, _ in pairs])
        if step is None and self._has_steps:
            # A word on the whole epoch, among the rows of its steps.
            pairs = [(x if is_test else f"epoch mean {x}", value) for x, value in pairs]
        elif step is None:
            step = epoch
        else:
            self._has_steps = self._has_steps or not is_test
            if epoch is None:
                log.total_steps = log.total_steps or of
            else:
                pairs.append(("epoch", float(epoch)))
                step = self._steps.count(epoch, step, of)
        log.row(step, pairs, line=number_, rank=record[2])

    def arranged(self, labels: Sequence[str], log: LogBuilder) -> Arrangement | None:
        at, epoch, of = (labels.index(x) if x in labels else None for x in COUNTERS)
        if at is None:
            return None
        kept = [place for place, label in enumerate(labels) if label not in COUNTERS]
        others = [labels[place] for place in kept]

        def rows(columns: Columns) -> tuple[Steps, Columns]:
            steps = list(map(count_of, columns[at]))
            ends = list(map(count_of, columns[of])) if of is not None else [None] * len(steps)
            self._has_steps = self._has_steps or not _is_test(others)
            values = [columns[place] for place in kept]
            if epoch is None:
                if of is not None and not log.total_steps:
                    log.total_steps = next(filter(None, ends), 0)
                return steps, values
            epochs = list(map(count_of, columns[epoch]))
            values.append(list(map(float, epochs)))
            return list(map(self._steps.count, epochs, steps, ends)), values

        return Arrangement(others if epoch is None else [*others, "epoch"], rows)

    def _find(self, line: str) -> list[Span] | None:
        """Where step, its end and epoch stand, and the values; None if it is no record."""
        counters = counters_in(line)
        values = values_in(line, self._kept_label) if counters else []
        if not any(is_loss(label) for label, _, _ in values):
            return None
        return [*counters, *values]


def _is_test(labels: Sequence[str]) -> bool:
    """Whether all values are of an evaluation."""
    return all(label[:4] == "val " for label in labels)
