"""What darknet prints: YOLO before it was ported."""

import re
from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class Darknet(TextReader):
    """` 400: 5.31, 6.02 avg loss, 0.0010 rate, 3.5 seconds, 25600 images`.

    The first value is the loss of the batch, the second a running mean. Lines of the regions
    show `-nan` wherever no object was in view, which means nothing.
    """

    name: ClassVar[str] = "darknet"
    title: ClassVar[str] = "darknet (YOLO)"
    specificity = 0.93
    hint = " avg"
    record = (
        rf"(?:\A|\s)(?P<step>\d+): (?P<loss>{NUMBER}), (?P<avg_loss>{NUMBER}) avg(?: loss)?, "
        rf"(?P<lr>{NUMBER}) rate, "
    )

    @staticmethod
    def _rank(match: "re.Match[str] | None", line: str) -> int | None:
        return None  # `400: ` is no rank, but the step
