"""Text logs of PaddlePaddle: PaddleDetection, -OCR, -Clas, -Seg, -NLP, -Formers, ERNIE."""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from foreshock.core.epoch_steps import count_of
from foreshock.core.line_shape import Arrangement, Columns, Record, Steps, as_they_are
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.reader import Sample
from foreshock.core.text_reader import NUMBER, TextReader

Pairs = list[tuple[str, float]]
_SUITES = {"det_epoch": 0, "clas_epoch": 1}
"""Those that print an epoch and a step of it, with the number of the first epoch."""
_STEPS = frozenset(("seg", "ocr", "nlp", "former"))
_HINTS = ("Epoch: [", "[Epoch ", "[TRAIN] ", "epoch: ", "global step", "global_step")
_SOME = rf"{NUMBER}(?![\w.])"


class Paddle(TextReader):
    """`ppdet.engine INFO: Epoch: [1] [ 40/500] learning_rate: 0.01 loss: 1.3 eta: 1:02:00`.

    Each suite has its own form, among them `epoch: [1/500], global_step: 10, lr: 0.001, loss:
    1.2`, `[Train][Epoch 1/90][Iter: 0/20]lr: 0.1, loss: 4.6`, `[TRAIN] epoch: 1, iter:
    10/1000, loss: 1.2`, `global step 10, epoch: 0, batch: 9, loss: 1.2` and `loss: 1.2,
    learning_rate: 1e-05, global_step: 10`. What is evaluated has other lines. PaddleOCR fills
    numbers up to six places with an `x`, which shows where they are `nanxxx`.
    """

    name: ClassVar[str] = "paddle"
    title: ClassVar[str] = "PaddlePaddle (PaddleDetection, PaddleOCR, PaddleNLP, …)"
    specificity = 0.86
    hint = ": "
    record = (
        r"Epoch: \[(?P<det_epoch>\d+)\] \[\s*(?P<det_at>\d+)/\s*(?P<det_of>\d+)\] "
        r"(?=[A-Za-z_]+: )(?!.{0,2}eta: )"
        r"|\[(?:Train|TRAIN)\]\[Epoch (?P<clas_epoch>\d+)/\d+\]"
        r"\[Iter: ?(?P<clas_at>\d+)/(?P<clas_of>\d+)\]"
        r"|\[TRAIN\] (?:epoch[:=] ?\d+(?:/\d+)?, )?iter[:=] ?(?P<seg>\d+)/(?P<total_steps>\d+), "
        r"|epoch: \[?\d+(?:/\d+)?\]?, (?:global_step|iter): (?P<ocr>\d+), "
        r"|global step:? ?(?P<nlp>\d+)(?: ?/ ?\d+)?, "
        rf"|(?P<trainer>(?<![\w./])loss: {_SOME}, (?:[\w./@-]+: [^,\s]+, ){{0,24}}?"
        r"(?:global_step|step): (?P<former>\d+)\b)"
        r"|(?P<eval>\[Eval\]\[Epoch \d+\]\[Avg\]|cur metric, |\[EVAL\] #?[Ii]mages|"
        rf"eval_\w+: {_SOME}, )"
    )
    pairs = rf"(?<![\w./@-])([A-Za-z][\w./@-]*)'?[:=] ?({NUMBER})x{{0,3}}(?![\w:.])"
    drops = (
        rf"{COSTS}|_cost\Z|\A(?:avg_)?(?:samples|batch|images)\Z|\A(?:interval|global)_|_mem"
        r"|mem_|memory|data_id|src_id|data_type|_samples\Z|\A#?[Ii]mages\Z"
    )
    labels: ClassVar[Mapping[str, str]] = {"progress_or_epoch": "epoch", "iter": "", "step": ""}
    regular = True

    def recognises(self, sample: Sample) -> float:
        found = 0
        for line in sample.lines:
            if any(hint in line for hint in _HINTS) and self._record.search(line):
                found += 1
                if found >= 3:
                    return self.specificity
        return 0.97 * self.specificity if found else 0.0

    def record_of(self, match: "re.Match[str]", line: str) -> tuple[int | None, Pairs] | None:
        found = super().record_of(match, line)
        if found is None or match["eval"] is None:
            return found
        return None, [(x if x.startswith("eval_") else f"eval_{x}", v) for x, v in found[1]]

    def arranged(self, labels: Sequence[str], log: LogBuilder) -> Arrangement | None:
        places = list(range(len(labels)))
        if labels[0] in _SUITES:
            kept = [place for place in places[3:] if labels[place] != "epoch"]
            first = _SUITES[labels[0]]

            def steps_of(columns: Columns) -> Steps:
                return [
                    count_of(at) + (count_of(epoch) - first) * count_of(of)
                    for epoch, at, of in zip(*columns[:3], strict=True)
                ]

            kept = [0, *kept]
        else:
            named = next((place for place in places if labels[place] in _STEPS), None)
            if named is None:
                return as_they_are(labels)
            kept = [place for place in places if labels[place] not in _STEPS]
            kept = kept if named else places[1:]

            def steps_of(columns: Columns) -> Steps:
                return [count_of(value) for value in columns[named]]

        if not kept or "" in labels:
            return None

        def rows(columns: Columns) -> tuple[Steps, Columns]:
            return steps_of(columns), [columns[place] for place in kept]

        own = ["epoch" if labels[place] in _SUITES else labels[place] for place in kept]
        return Arrangement(own, rows)

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        step, pairs, rank = record
        label, value = pairs[0]
        if label in _SUITES:
            step = count_of(pairs[1][1]) + (count_of(value) - _SUITES[label]) * count_of(
                pairs[2][1]
            )
            pairs = [("epoch", value), *(one for one in pairs[3:] if one[0] != "epoch")]
        elif label in _STEPS:
            step, pairs = count_of(value), pairs[1:]
        else:
            own = next((one for one in pairs if one[0] in _STEPS), None)
            if own is not None:
                step = count_of(own[1])
                pairs = [one for one in pairs if one[0] not in _STEPS]
        if pairs:
            log.row(step, pairs, line=number_, rank=rank)
