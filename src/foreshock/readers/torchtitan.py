"""What torchtitan prints."""

import re
from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class Torchtitan(TextReader):
    """`step: 12  loss:  9.5412  grad_norm:  4.31  memory: 40.1GiB(50.2%)  tps: 5,210  mfu: 31.0%`.

    Old versions print no gradient norm. `validate step:` is an evaluation. Colours may have
    lost their escape character (`[31mstep: 12  [32mloss: …`).
    """

    name: ClassVar[str] = "torchtitan"
    title: ClassVar[str] = "torchtitan"
    specificity = 0.9
    hint = "step: "
    record = (
        r"(?:\b|m)(?P<validate>validate )?step:\s{1,12}(?P<step>\d+)  "
        r"(?=(?:\[[\d;]{1,20}m)?loss:\s)"
    )
    pairs = rf"  (?:\[[\d;]{{1,20}}m)?([a-z_]\w{{0,60}}):\s{{1,12}}({NUMBER})(?=  |\s*\Z)"
    drops = r"\A(?:memory|tps|wps|tflops|mfu|sps|iter|data)\Z"
    regular = True

    def record_of(
        self, match: "re.Match[str]", line: str
    ) -> tuple[int | None, list[tuple[str, float]]] | None:
        found = super().record_of(match, line)
        if found is None or not match["validate"]:
            return found
        return found[0], [(f"validation/{label}", value) for label, value in found[1]]
