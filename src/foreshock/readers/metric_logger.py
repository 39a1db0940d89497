"""Text logs of torchvision's MetricLogger: DETR, MAE, DeiT, BEiT, BLIP, and ports of them."""

import re
from typing import ClassVar

from foreshock.core.epoch_steps import count_of
from foreshock.core.line_shape import Record
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.text_reader import NUMBER, Says, TextReader, number

Pairs = list[tuple[str, float]]


class MetricLogger(TextReader):
    """`Epoch: [3]  [ 40/139]  eta: 0:08:12  lr: 0.0001  loss: 3.21 (3.48)  time: 6.1  data: 0.1`.

    The first value is a median over a window, the one in brackets the mean of the epoch. Rows
    of training carry the former; of a test pass only the mean at its end is kept, as `eval_`.
    Epochs are counted from 0.
    """

    name: ClassVar[str] = "metric_logger"
    title: ClassVar[str] = "MetricLogger text (torchvision, DETR, MAE, DeiT, BLIP)"
    specificity = 0.88
    hint = "eta: "
    record = (
        r"(?:\[(?P<at_epoch>\d+)\]\s{0,4})?"
        r"\[\s*(?P<at>\d+)/\s*(?P<of>\d+)\]\s{1,4}eta: "
    )
    pairs = rf"(?<![\w/.@-])([A-Za-z][\w/.@-]*): ({NUMBER})(?=\s|,|$)"
    regular = True
    drops = COSTS
    events = (
        Says(
            EventKind.NONFINITE,
            r"Loss is (?:nan|inf), stopping training",
            hint=", stopping training",
            signal="loss",
        ),
        Says(EventKind.RESUMED, r"\bResume checkpoint\b|\bResumed? from\b", hint="Resume"),
    )
    _means = re.compile(
        rf"(?<![\w/.@-])([A-Za-z][\w/.@-]*): ({NUMBER})(?: \(({NUMBER})\))?(?=\s|,|$)"
    )
    _test = re.compile(r"(?i)\b(?:test|val|valid|validation|eval|evaluation)\b")
    _tested: "list[tuple[int, Pairs]]"

    def record_of(self, match: "re.Match[str]", line: str) -> tuple[int | None, Pairs] | None:
        if not self._test.search(match.string, max(0, match.start() - 60), match.start()):
            return super().record_of(match, line)
        pairs: Pairs = []
        for label, first, mean in self._means.findall(line):
            value = number(mean or first)
            if value is not None and self._kept_label(label):
                pairs.append((f"test/{label}", value))
        return None, pairs

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        step, pairs, rank = record
        if pairs[0][0].startswith("test/"):
            self._tested = [(number_, pairs)]  # the mean so far; that of the last line counts
            return
        self._flush(log)
        place = 1
        step = count_of(pairs[0][1])
        if pairs[0][0] == "at_epoch":
            place, epoch = 2, pairs[0][1]
            step = count_of(epoch) * count_of(pairs[2][1]) + count_of(pairs[1][1])
            pairs.append(("epoch", epoch))
        log.row(step, pairs[place + 1 :], line=number_, rank=rank)

    def begin(self) -> None:
        self._tested = []

    def end(self, log: LogBuilder) -> None:
        self._flush(log)

    def _flush(self, log: LogBuilder) -> None:
        for line, pairs in self._tested:
            log.row(None, pairs, line=line)
        self._tested = []
