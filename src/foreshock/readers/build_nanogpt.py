"""What Karpathy's build-nanogpt and nanochat print."""

import re
from collections.abc import Mapping
from typing import ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.text_reader import NUMBER, TextReader, number

_VALIDATION = re.compile(rf"\A\s{{0,9}}validation loss: ({NUMBER})\s*\Z")


class BuildNanogpt(TextReader):
    """`step    12 | loss: 9.5 | lr 1.2e-05 | norm: 4.3 | dt: 90ms | tok/sec: 180000`.

    nanochat prints `step 00012/20000 (0.06%) | loss: 9.5 | grad norm: 4.3 | lrm: 1.00 | …` and
    `Step 00250 | Validation bpb: 1.1`; its loss is an exponential average.
    """

    name: ClassVar[str] = "build_nanogpt"
    title: ClassVar[str] = "build-nanogpt / nanochat"
    specificity = 0.87
    hint = "tep"
    record = (
        r"\b[sS]tep\s{1,12}(?P<step>\d+)(?:/(?P<total_steps>\d+))?(?: \([\d.]{1,12}%\))?(?:,| \|) "
        r"(?=(?:[\w ]{1,30} \d{1,9} \| ){0,3}"
        r"(?:loss|Training loss|Validation (?:loss|bpb)|CORE metric|ChatCORE|Average reward): )"
    )
    pairs = rf"(?:,|\|) ([A-Za-z][\w ]{{0,40}}?):? ({NUMBER})(?= ?\||,|\s*\Z)"
    drops = r"(?i)\A(?:dt|tok|mfu|bf16_mfu|total time|eta|epoch|lrm|Example step|Pass)\b"
    labels: ClassVar[Mapping[str, str]] = {
        "Training loss": "loss",
        "Validation loss": "val_loss",
        "Validation bpb": "val_bpb",
    }

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        if "validation loss: " in line and (found := _VALIDATION.match(line)):
            value = number(found[1])
            if value is not None:
                log.row(None, [("val_loss", value)], line=number_)
            return
        super().word(line, number_, log)
