"""Progress bars that carry the loss: tqdm's postfix or description, Lightning, OpenRLHF."""

import re
from typing import ClassVar

from foreshock.core.epoch_steps import count_of
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.reader import Sample, Source
from foreshock.core.spans import Span, Spans
from foreshock.core.text_reader import NUMBER, TextReader

_NUMBER = rf"(?:tensor\()?({NUMBER})(?:\.0)?(?![\w.])"
_AT, _OF, _EPOCH = "\0at", "\0of", "\0epoch"
_NAMED_EPOCH = re.compile(r"(?i)\bepochs?\b[\s:=#\[(]{0,4}(\d{1,9})(?:\s?/\s?(\d{1,9}))?")
_TEST = re.compile(r"(?i)\b(?:val|valid|validation|validating|eval|evaluating|test|testing)\b")


class ProgressBar(TextReader):
    """`Epoch 0:  12%|█▏ | 60/500 [00:07<00:51, 8.5it/s, v_num=0, train_loss=3.20]`.

    A bar is redrawn many times: the first drawing of each step counts, and one that shows a
    NaN. A bar that names an epoch counts the steps of that epoch, from 0 in Lightning, which
    also writes `nan.0`. Losses may stand before the bar (`loss 3.2:  12%|...`) as well.
    """

    name: ClassVar[str] = "progress_bar"
    title: ClassVar[str] = "progress bars with a loss (tqdm, Lightning, OpenRLHF)"
    specificity = 0.5
    hint = "it"
    record = (
        r"\b(?P<step>\d{1,12})(?:/(?P<total_steps>\d{1,12})|it)\s"
        r"(?:\[\d{1,3}:\d\d|\d{1,3}:\d\d:\d\d •)(?P<rest>[^\]\n]{0,4000})"
    )
    drops = rf"{COSTS}|\Av_num\Z|\A(?:it|s)\Z"
    _value = re.compile(rf"(?<![\w./@-])([A-Za-z][\w./@-]*)\s?[=:]\s?{_NUMBER}")
    _named = re.compile(
        r"(?i)(?<![\w./-])((?:[a-z][\w./-]{0,40}[_ ])?loss|grad_?norm|lr)"
        rf"\s?[=:]?\s{{0,3}}{_NUMBER}"
    )

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        found = 0
        for line in sample.lines:
            if self.hint in line and "oss" in line and self._find(line):
                found += 1
                if found >= 3:
                    return self.specificity
        return 0.97 * self.specificity if found else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        spans = Spans(log, self._find)
        last: tuple[int, int, bool] | None = None
        base: int | None = None
        for number_, line in source.lines():
            log.num_lines = number_
            found = spans.read(line) if self.hint in line and "oss" in line else None
            if found is None:
                self.word(line, number_, log)
                continue
            counted = {label: count_of(value) for label, value in found if label[0] == "\0"}
            pairs = [pair for pair in found if pair[0][0] != "\0"]
            step, epoch, of = counted[_AT], counted.get(_EPOCH, 0), counted.get(_OF)
            is_broken = any(value - value != 0 for _, value in pairs)
            if pairs[0][0].startswith("eval/"):
                if step == of:
                    log.row(None, pairs, line=number_)
                continue
            if last is not None and (epoch, step) == last[:2] and last[2] >= is_broken:
                continue
            last = (epoch, step, is_broken)
            if _EPOCH in counted:
                if base is None:
                    base = 0 if "v_num" in line else min(epoch, 1)
                pairs.append(("epoch", float(epoch)))
                step += max(0, epoch - base) * (of or 0)
            elif base is None:
                log.total_steps = log.total_steps or of
            log.row(step, pairs, line=number_, rank=self._rank(None, line))
            if "OVERFLOW" in line:
                self.word(line, number_, log)

    def _find(self, line: str) -> list[Span] | None:
        """Where step, end and epoch stand, and the values; None if no loss stands by the bar."""
        match = self._record.search(line)
        if match is None:
            return None
        start = max(0, match.start() - 400)
        end = line.find("%|", start, match.start())
        end = match.start() if end < 0 else end
        values = [
            (found[1], *found.span(2))
            for pattern, (low, high) in (
                (self._named, (start, end)),
                (self._value, match.span("rest")),
            )
            for found in pattern.finditer(line, low, high)
            if self._kept_label(found[1])
        ]
        if not any("loss" in label.lower() for label, _, _ in values):
            return None
        if _TEST.search(line, start, end):
            values = [(f"eval/{label}", low, high) for label, low, high in values]
        counters = [(_AT, *match.span("step"))]
        if match["total_steps"]:
            counters.append((_OF, *match.span("total_steps")))
        if epoch := _NAMED_EPOCH.search(line, start, match.start()):
            counters.append((_EPOCH, *epoch.span(1)))
        return [*counters, *values]
