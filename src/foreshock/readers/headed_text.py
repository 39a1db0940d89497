"""Text whose losses stand below a line that names the epoch or step, or below none at all."""

import re
from collections import Counter
from typing import ClassVar

from foreshock.core.epoch_steps import EpochSteps, count_of
from foreshock.core.keyed_lines import AT, EPOCH, OF, counters_in, is_loss, may_hold, values_in
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS, signal_of
from foreshock.core.log_words import NUMBER, number
from foreshock.core.reader import Sample, Source
from foreshock.core.text_reader import TextReader

Pairs = list[tuple[str, float]]
_ALONE = re.compile(
    rf"\A[^A-Za-z]{{0,40}}([A-Za-z][A-Za-z_/() -]{{0,60}}?)\s{{0,3}}[:=]\s{{0,12}}({NUMBER})"
    r"[\s,.;:|]{0,4}\Z"
)
_MIN_LINES, _MANY_LINES = 3, 10
_MAX_HEAD = 200
_SETTINGS = re.compile(r"(?i)weight|coef|lambda|alpha|beta|scal|factor|ratio|type|name|best")


class HeadedText(TextReader):
    """`Epoch 3/24`, below it `train Loss: 0.41 Acc: 0.81` and `val Loss: 0.25 Acc: 0.91`.

    A line that names an epoch or a step, and no loss, heads those that name losses and no
    step: they belong to it. Where nothing heads them, they are numbered. A line of one label
    and its number bears all words of the label (`Value function loss: 0.02`).
    """

    name: ClassVar[str] = "headed_text"
    title: ClassVar[str] = "text with losses below the step"
    specificity = 0.2
    record = r"(?!)"
    drops = rf"{COSTS}|\.py\Z|(?i:\A(?:line|rank|pid|seed|node|size|world_size|batch_size|bs)\Z)"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        labels: Counter[str] = Counter()
        num_lines = num_found = num_heads = 0
        for line in sample.lines:
            if not line or line.isspace():
                continue
            num_lines += 1
            if may_hold(line):
                if counters_in(line):
                    continue
                found = self._values(line)
                num_found += bool(found)
                labels.update(label for label, _ in found[:1])
            elif len(line) <= _MAX_HEAD and num_heads < _MANY_LINES and counters_in(line):
                num_heads += 1
        most = max(labels.values(), default=0)
        if most < _MIN_LINES or num_found < 0.02 * num_lines:
            return 0.0
        if num_heads >= _MIN_LINES:
            return self.specificity
        return 0.75 * self.specificity if most >= max(_MANY_LINES, 0.3 * num_lines) else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        steps = EpochSteps(may_run_on=True)
        step: int | None = None
        epoch: int | None = None
        for number_, line in source.lines():
            log.num_lines = number_
            holds = may_hold(line)
            if holds or len(line) <= _MAX_HEAD:
                spans = counters_in(line)
                if not spans and holds and (pairs := self._values(line)):
                    if epoch is not None and step is not None:
                        pairs.append(("epoch", float(epoch)))
                    log.row(epoch if step is None else step, pairs, line=number_)
                    continue
                if spans and not (holds and self._values(line)):
                    counted = {
                        label: count_of(number(line[low:high]) or 0.0) for label, low, high in spans
                    }
                    epoch = counted.get(EPOCH, epoch)
                    if AT in counted:
                        step = counted[AT]
                        if epoch is not None:
                            step = steps.count(epoch, step, counted.get(OF))
                    elif EPOCH in counted:
                        step = None
                    continue
            if line:
                self.word(line, number_, log)

    def _values(self, line: str) -> Pairs:
        """The losses of a line, and what stands beside them; none if it names no loss."""
        if (alone := _ALONE.match(line)) is not None:
            label = " ".join(alone[1].split())
            found = [(label, *alone.span(2))]
        else:
            found = values_in(line, self._kept_label)
        pairs: Pairs = []
        for label, low, high in found:
            if (value := number(line[low:high])) is not None and not _SETTINGS.search(label):
                pairs.append((label, value))
        return pairs if any(_is_named(label) for label, _ in pairs) else []


def _is_named(label: str) -> bool:
    """Whether a label is a loss by its last word, not by chance."""
    words = re.split(r"[^A-Za-z0-9]+", label.lower())
    return is_loss(label) and (
        words[-1] in ("loss", "losses") or signal_of(label)[0] in ("loss", "eval_loss", "grad_norm")
    )
