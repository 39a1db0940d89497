"""What MosaicML Composer and llm-foundry print: a line for the batch, and metrics below it."""

import re
from collections.abc import Sequence
from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader

_METRIC = re.compile(r"\A\s{1,12}(?:Train|Eval) [^:\n]{1,160}: ")
_LR = re.compile(r"\Alr-[^/]{1,60}/group0\Z")
_LABELS = {
    "loss/train/total": "loss",
    "l2_norm/grad/global": "grad_norm",
    "l2_norm/param/global": "param_norm",
    "metrics/eval/LanguageCrossEntropy": "eval_loss",
    "metrics/eval/CrossEntropy": "eval_loss",
}


class Composer(TextReader):
    """`[batch=12/9000]:`, and below it `	 Train loss/train/total: 9.5412`, ….

    With a duration in epochs the line says `[epoch=1][batch=12/600]:`; with one in tokens,
    `[token=…]`, and the batch is `time/batch`. `[Eval batch=8/8] Eval on eval data:` belongs
    to the step before.
    """

    name: ClassVar[str] = "composer"
    title: ClassVar[str] = "MosaicML Composer / llm-foundry"
    specificity = 0.93
    hint = "["
    record = (
        r"\[(?:epoch=(?P<epoch>\d+)\]\[)?"
        r"(?:batch=(?P<step>\d+)(?:/(?P<total_steps>\d+))?"
        r"|(?:token|sample|iteration)=\d+/\d+|Eval batch=\d+/\d+)\](?=:| Eval on )"
    )
    folds = r"\A\s+(?:Train|Eval) "
    joint = "\n"
    max_folded = 400
    pairs = rf"\n(?:Train|Eval) ([^:\n]{{1,160}}): ({NUMBER})(?=\s*(?:\n|\Z))"
    drops = (
        r"(?i)\A(?:throughput|memory|trainer|wall_clock|rank_zero)|time/(?!batch\Z)|perplexity"
        r"|\Atime/\w+_in_|l2_norm/(?:moment|update|grad/(?!global)|param/(?!global))"
    )

    def continues(self, line: str, before: Sequence[str]) -> bool:
        return line[:1] in "\t " and _METRIC.match(line) is not None

    def record_of(
        self, match: "re.Match[str]", line: str
    ) -> tuple[int | None, list[tuple[str, float]]] | None:
        found = super().record_of(match, line)
        if found is None:
            return None
        step, pairs = found
        kept: list[tuple[str, float]] = []
        for label, value in pairs:
            if label == "time/batch":
                if (step is None or match["epoch"]) and "Eval batch=" not in match[0]:
                    step = int(value) if abs(value) < 1 << 62 else step
            else:
                kept.append((_LABELS.get(label, "lr" if _LR.match(label) else label), value))
        return step, kept
