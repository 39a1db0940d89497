"""What litgpt prints."""

import re
from typing import ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.text_reader import NUMBER, TextReader, number

_FINAL = re.compile(rf"Final evaluation \| val loss: ({NUMBER})")


class Litgpt(TextReader):
    """`Epoch 1 | iter 12 step 3 | loss train: 4.311, val: n/a | iter time: 90.1 ms (step)`.

    `val` repeats the last evaluation on every line, so it is read from the evaluation's own
    line (`iter 600: val loss 3.2, …`), which counts iterations too.
    """

    name: ClassVar[str] = "litgpt"
    title: ClassVar[str] = "LitGPT"
    specificity = 0.9
    hint = "iter "
    record = r"\biter (?P<step>\d+)(?= step \d+ ?\| loss train: |: val loss )"
    pairs = rf"\b(loss train|val loss):? ({NUMBER})(?=,| \||\Z)"

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        if "Final eval" in line and (found := _FINAL.search(line)):
            value = number(found[1])
            if value is not None:
                log.row(None, [("val loss", value)], line=number_)
            return
        super().word(line, number_, log)
