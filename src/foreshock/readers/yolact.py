"""Text logs of YOLACT."""

from collections.abc import Mapping
from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader

_NAMES = {"B": "box", "C": "class", "M": "mask", "P": "prototype", "S": "segmentation"}


class Yolact(TextReader):
    """`[  1]     430 || B: 5.0 | C: 3.9 | M: 6.1 | S: 1.5 | T: 16.5 || ETA: 9 days || timer: 0.3`.

    The losses bear one letter each, and `T` is their sum.
    """

    name: ClassVar[str] = "yolact"
    title: ClassVar[str] = "YOLACT"
    specificity = 0.95
    hint = " T: "
    record = r"\[\s*(?P<epoch>\d+)\]\s+(?P<step>\d+) \|\| (?=[A-Z]: )"
    pairs = rf"\b([A-Z]): ({NUMBER})(?= \|)"
    labels: ClassVar[Mapping[str, str]] = {
        "T": "total_loss",
        **{letter: f"{word}_part" for letter, word in _NAMES.items()},
    }
