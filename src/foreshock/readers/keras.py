"""Progress text of Keras' `fit()`, old and new."""

import re
from typing import ClassVar

from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.reader import Sample, Source
from foreshock.core.text_reader import NUMBER, Says, TextReader, whole

Pairs = list[tuple[str, float]]


class Keras(TextReader):
    """`120/120 [=====] - 3s 21ms/step - loss: 0.71 - val_loss: 0.69` below `Epoch 2/10`.

    Keras 3 draws `━━━` and puts the time before the first dash. Within an epoch a bar shows
    the mean so far: the last bar of each epoch is its record, and epochs are the steps.
    """

    name: ClassVar[str] = "keras"
    title: ClassVar[str] = "Keras fit()"
    specificity = 0.86
    hint = " - "
    record = (
        r"(?:\A|[\s\x08])(?P<at>\d+)/(?P<of>\d+|Unknown)\s{1,8}"
        r"(?:\[[=>.]*\]|[━╸╺ ]{1,120}(?=[\d\s-])|(?=- ))"
        r"(?P<rest>[^\x08]*? - [^\x08]*)"
        r"|\A - (?:ETA: )?\d+(?:\.\d+)?m?s(?P<bare>[^\x08]* - [^\x08]*)"
    )
    drops = COSTS
    events = (
        Says(
            EventKind.NONFINITE,
            r"Batch \d+: Invalid loss, terminating training",
            hint="Invalid loss",
            signal="loss",
        ),
    )
    _epoch = re.compile(r"\AEpoch (\d+)(?:/(\d+))?\s*\Z")
    _value = re.compile(rf" - ([A-Za-z_][\w./@-]*): ({NUMBER})(?=\s|$|\x08)")

    def recognises(self, sample: Sample) -> float:
        found = super().recognises(sample)
        return found if found and "loss: " in sample.text else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        epoch, num_epochs = 0, 0
        bar: tuple[int, Pairs] | None = None
        has_epochs = False
        for number_, line in source.lines():
            log.num_lines = number_
            if line.startswith("Epoch ") and (head := self._epoch.match(line)):
                if bar is not None:
                    log.row(epoch, bar[1], line=bar[0])
                    bar = None
                has_epochs, epoch = True, int(whole(head[1]) or 0)
                log.total_steps = log.total_steps or whole(head[2] or "nan")
                continue
            if " - " not in line:
                self.word(line, number_, log)
                continue
            for piece in line.split("\x08"):
                match = self._record.search(piece) if " - " in piece else None
                if match is None:
                    continue
                pairs = self.kept(self._value.findall(match["rest"] or match["bare"]))
                if not pairs:
                    continue
                if not has_epochs and (match["at"] is None or match["at"] == match["of"]):
                    num_epochs += 1
                    log.row(num_epochs, pairs, line=number_)
                elif has_epochs and (bar is None or self._goes_on(bar[1], pairs)):
                    bar = (number_, pairs)
        if bar is not None:
            log.row(epoch, bar[1], line=bar[0])

    @staticmethod
    def _goes_on(before: Pairs, now: Pairs) -> bool:
        """Whether a bar belongs to the epoch still: after the values of validation only a bar
        of `evaluate()` can follow."""
        was_last = any(label.startswith("val_") for label, _ in before)
        return not was_last or any(label.startswith("val_") for label, _ in now)
