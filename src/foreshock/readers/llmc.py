"""What llm.c prints."""

import re
from typing import ClassVar

from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.text_reader import NUMBER, Says, TextReader, number

_VALIDATION = re.compile(rf"\Aval loss ({NUMBER})\s*\Z")


class Llmc(TextReader):
    """`step   12/19560 | loss 9.5 (+nanz)| norm 4.3 (-0.12z)| lr 1.03e-05 | 90 ms | …`.

    The bracket holds the z-score of the value among the last 128 steps; `+nanz` is one that is
    not known yet. Validation losses stand on lines of their own, without a step: they belong
    to the step before. The fp32 and Python versions print `train loss`, and no z-scores.
    """

    name: ClassVar[str] = "llmc"
    title: ClassVar[str] = "llm.c"
    specificity = 0.9
    hint = "step "
    record = (
        r"\bstep\s{1,12}(?P<step>\d+)/(?P<total_steps>\d+)(?: \| |: )"
        r"(?=(?:train )?loss\s{1,12}[-+\dni])"
    )
    pairs = rf"(?: \| |\)\| |: )(train loss|loss|norm|lr)\s{{1,12}}({NUMBER})(?= |\Z)"
    events = (
        Says(
            EventKind.SKIPPED,
            r"skipping update due to (?:loss|grad) z-score of",
            hint="skipping update",
        ),
    )

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        if line.startswith("val loss ") and (found := _VALIDATION.match(line)):
            value = number(found[1])
            if value is not None:
                log.row(None, [("val_loss", value)], line=number_)
            return
        super().word(line, number_, log)
