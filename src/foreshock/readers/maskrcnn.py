"""Text logs of maskrcnn_benchmark and its descendants."""

from collections.abc import Mapping
from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class Maskrcnn(TextReader):
    """`eta: 1:02:11  iter: 40  loss: 2.1 (2.6)  loss_rpn: 0.3 (0.4)  time: 1.6 (1.5)  lr: 0.02`.

    Each meter prints the median of its last values, and in brackets the average of the run so
    far: one NaN stays in the latter for ever, so the former is read.
    """

    name: ClassVar[str] = "maskrcnn"
    title: ClassVar[str] = "maskrcnn_benchmark"
    specificity = 0.86
    hint = "iter: "
    record = r"\beta: [\w ,:]{1,60}?  iter: (?P<step>\d+)  (?=\w{1,60}: [-+.\w]{1,30} \()"
    pairs = rf"  ([A-Za-z_]\w{{0,60}}): ({NUMBER})(?=  | \(|\Z)"
    labels: ClassVar[Mapping[str, str]] = {"iter": "", "time": "", "data": "", "mem": ""}
