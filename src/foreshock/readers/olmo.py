"""What OLMo and OLMo-core print: a line for the step, and a block of metrics below it."""

import re
from collections.abc import Sequence
from typing import ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.text_reader import NUMBER, TextReader

_METRIC = re.compile(rf"\A\s{{2,12}}([A-Za-z][^=\n]{{0,120}})=({NUMBER})\s*\Z")


class Olmo(TextReader):
    """`[step=12/9000,epoch=0]`, and below it `    train/CrossEntropyLoss=9.541`, ….

    Numbers above a thousand have separators. OLMo-core prints `train/CE loss` and an `eta`.
    Metrics below another line (`Eval metrics`) are taken in if they are evaluations.
    """

    name: ClassVar[str] = "olmo"
    title: ClassVar[str] = "OLMo / OLMo-core"
    specificity = 0.93
    hint = "[step="
    record = (
        r"\[step=(?P<step>[\d,]+)/(?P<total_steps>[\d,]+|\?+),epoch=(?P<epoch>\d+)[^\]\n]{0,60}\]"
    )
    folds = r"\A\s{2,12}[A-Za-z]"
    joint = "\n"
    max_folded = 400
    pairs = rf"(?:\n)([A-Za-z][^=\n]{{0,120}})=({NUMBER})(?=\s*(?:\n|\Z))"
    drops = r"(?i)\A(?:system|throughput|gpu_memory|checkpoint|data)\b|perplexity|ppl|total_tokens"

    def continues(self, line: str, before: Sequence[str]) -> bool:
        return line[:2] == "  " and "=" in line and _METRIC.match(line) is not None

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        if line[:2] == "  " and "eval/" in line and (found := _METRIC.match(line)):
            pairs = self.kept([(found[1], found[2])])
            if pairs:
                log.row(None, pairs, line=number_)
            return
        super().word(line, number_, log)
