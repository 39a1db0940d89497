"""Any text whose lines name a step and a loss: hand-written loops, notes, unknown trainers."""

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
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.reader import Sample, Source
from foreshock.core.spans import Span, Spans
from foreshock.core.text_reader import TextReader

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

    def read(self, source: Source, log: LogBuilder) -> None:
        steps = EpochSteps(may_run_on=True)
        spans = Spans(log, self._find)
        has_steps = False
        for number_, line in source.lines():
            log.num_lines = number_
            found = spans.read(line) if may_hold(line) else None
            if found is None:
                if line:
                    self.word(line, number_, log)
                continue
            pairs = [pair for pair in found if pair[0] not in COUNTERS]
            counted = {label: count_of(value) for label, value in found if label in COUNTERS}
            step, epoch, of = (counted.get(label) for label in COUNTERS)
            is_test = all(label[:4] == "val " for label, _ in pairs)
            if step is None and has_steps:
                # A word on the whole epoch, among the rows of its steps.
                pairs = [(x if is_test else f"epoch mean {x}", value) for x, value in pairs]
            elif step is None:
                step = epoch
            else:
                has_steps = has_steps or not is_test
                if epoch is None:
                    log.total_steps = log.total_steps or of
                else:
                    pairs.append(("epoch", float(epoch)))
                    step = steps.count(epoch, step, of)
            log.row(step, pairs, line=number_, rank=self._rank(None, line))

    def _find(self, line: str) -> list[Span] | None:
        """Where step, its end and epoch stand, and the values; None if it is no record."""
        counters = counters_in(line)
        values = values_in(line, self._kept_label) if counters else []
        if not any(is_loss(label) for label, _, _ in values):
            return None
        return [*counters, *values]
