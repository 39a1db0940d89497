"""What MaxText prints."""

import re
from typing import ClassVar

from foreshock.core.log import EventKind
from foreshock.core.text_reader import NUMBER, Says, TextReader


class Maxtext(TextReader):
    """`completed step: 12, seconds: 0.6, TFLOP/s/device: 180.2, …, loss: 9.541, lm_loss: 9.540`.

    Evaluations say `Completed eval after train step 12, loss=9.2, …`, in old versions `eval
    metrics after step: 12, loss=9.2, …`.
    """

    name: ClassVar[str] = "maxtext"
    title: ClassVar[str] = "MaxText"
    specificity = 0.93
    hint = "step"
    record = (
        r"\b(?:completed (?:profiler activation/deactivation )?step: "
        r"|(?P<evaluated>Completed eval after train step |eval metrics after step: ))"
        r"(?P<step>\d+),"
    )
    pairs = rf", ([A-Za-z][\w/ -]{{0,60}}?)(?:: |=)({NUMBER})(?=,|\s*\Z)"
    drops = r"(?i)\A(?:seconds|tflop|tokens|total_weights|perplexity|live slice|number of)"
    regular = True
    events = (
        Says(
            EventKind.NONFINITE,
            r"Aborting training due to (?:NaN|Inf) loss",
            hint="Aborting training",
            signal="loss",
        ),
    )

    def record_of(
        self, match: "re.Match[str]", line: str
    ) -> tuple[int | None, list[tuple[str, float]]] | None:
        found = super().record_of(match, line)
        if found is None or not match["evaluated"]:
            return found
        return found[0], [(f"eval/{label}", value) for label, value in found[1]]
