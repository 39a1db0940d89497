"""What TensorFlow's Estimator and its hooks print."""

import re
from collections.abc import Sequence
from typing import ClassVar

from foreshock.core.line_shape import Arrangement, Columns, Record, as_they_are
from foreshock.core.log import EventKind
from foreshock.core.log_builder import MAX_STEP, LogBuilder
from foreshock.core.text_reader import NUMBER, TextReader, whole

_DIVERGED = re.compile(r"Model diverged with loss = (?:NaN|nan)")
_BROKEN = re.compile(r"LossTensor is inf or nan|Found Inf or NaN global norm")
_SAVED = re.compile(r"Saving checkpoints for (\d{1,18}) into")


class TensorflowEstimator(TextReader):
    """`INFO:tensorflow:loss = 2.31, step = 400 (18.2 sec)`.

    A NaN is never printed as a number: `Model diverged with loss = NaN.` stands for it, some
    steps after the last record, and after the last checkpoint if that was later. What is
    evaluated stands in `Saving dict for global step 400: …`. Slim and the detection API print
    `global step 400: loss = 2.31 (0.27 sec/step)`, and die with `LossTensor is inf or nan`.
    """

    name: ClassVar[str] = "tensorflow_estimator"
    title: ClassVar[str] = "TensorFlow Estimator"
    specificity = 0.88
    hint = "step "
    record = r"(?<![\w/])(?:(?:global_)?step = |global step (?=\d+: loss = ))(?P<step>\d+)"
    pairs = rf"(?<![\w/])([A-Za-z][\w/]{{0,60}}) = ({NUMBER})(?=,| \(|\s*\Z)"
    whole_line = True
    regular = True
    drops = r"\A(?:step|global_step)\Z"

    _last_step = -1

    def record_of(
        self, match: "re.Match[str]", line: str
    ) -> tuple[int | None, list[tuple[str, float]]] | None:
        found = super().record_of(match, line)
        if found is None or "Saving dict" not in line:
            return found
        return found[0], [(f"eval/{label}", value) for label, value in found[1]]

    def arranged(self, labels: Sequence[str], log: LogBuilder) -> Arrangement | None:
        place = labels.index("")

        def check(numbers: Columns, start: int) -> int:
            steps = numbers[place]
            end = next(
                (n for n in range(start, len(steps)) if not 0 <= steps[n] < MAX_STEP), len(steps)
            )
            if end > start:
                self._last_step = int(steps[end - 1])
            return end

        return as_they_are(labels, check)

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        if record[0] is not None:
            self._last_step = record[0]
        super().settle(record, number_, log)

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        if "Saving check" in line and (saved := _SAVED.search(line)):
            self._last_step = max(self._last_step, whole(saved[1]) or 0)
        elif "diverged" in line and _DIVERGED.search(line):
            log.row(self._last_step + 1, [("loss", float("nan"))], line=number_)
            log.event(EventKind.NONFINITE, line=number_, text=line, signal="loss")
        elif " or " in line and (broken := _BROKEN.search(line)):
            signal = "loss" if broken[0].startswith("Loss") else "grad_norm"
            log.event(EventKind.NONFINITE, line=number_, text=line, signal=signal)
        else:
            super().word(line, number_, log)
