"""What mlx-lm and mlx-examples print."""

import re
from collections.abc import Mapping
from typing import ClassVar

from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.text_reader import NUMBER, TextReader, number, whole

_SKIPPED = re.compile(
    rf"\bIter (\d{{1,18}}): SKIPPED .{{0,80}}?\(loss ({NUMBER}), (?:grad_)?norm ({NUMBER})\)"
)


class Mlx(TextReader):
    """`Iter 20: Train loss 1.412, Learning Rate 1.000e-05, It/sec 0.51, Tokens/sec 190.2, …`.

    `Iter 1: Val loss 2.859, Val took 5.1s` is an evaluation. A guarded loop says `Iter 40:
    SKIPPED non-finite batch (loss 1.23, norm nan)`.
    """

    name: ClassVar[str] = "mlx"
    title: ClassVar[str] = "MLX LM"
    specificity = 0.92
    hint = "Iter "
    record = r"\bIter (?P<step>\d+):(?= (?:Train |Val |Test )?loss )"
    pairs = rf"(?::|,)\s{{1,12}}([A-Za-z][A-Za-z_ /]{{0,40}}?) ({NUMBER})(?=,|\s*\Z)"
    drops = r"(?i)/sec|tokens|peak mem|took|time"
    labels: ClassVar[Mapping[str, str]] = {"Learning Rate": "lr", "LR": "lr"}

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        if "SKIPPED" in line and (found := _SKIPPED.search(line)):
            norm = number(found[3])
            if norm is not None:
                log.row(whole(found[1]), [("grad_norm", norm)], line=number_)
            log.event(EventKind.SKIPPED, line=number_, text=line, signal="grad_norm")
            return
        super().word(line, number_, log)
