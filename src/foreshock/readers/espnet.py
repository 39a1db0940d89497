"""Text logs of ESPnet2."""

import re
from typing import ClassVar

from foreshock.core.epoch_steps import EpochSteps, count_of
from foreshock.core.line_shape import Record
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.text_reader import NUMBER, Says, TextReader

Pairs = list[tuple[str, float]]


class Espnet(TextReader):
    """`(trainer:663) INFO: 2epoch:train:101-200batch: iter_time=0.2, loss_ctc=80.1, loss=65.2`.

    Values are means over those batches, which are counted anew in every epoch. An epoch ends
    with `2epoch results: [train] loss=65.1, ..., [valid] loss=63.8, ...`, of which what is
    validated is kept.
    """

    name: ClassVar[str] = "espnet"
    title: ClassVar[str] = "ESPnet2"
    specificity = 0.92
    hint = "epoch"
    record = (
        r"\b(?:(?P<at_epoch>\d+)epoch:train:\d+-(?P<at>\d+)batch: "
        r"|\d+epoch results: (?P<results>\[train\]))"
    )
    pairs = rf"(?<![\w.])([A-Za-z]\w*)=({NUMBER})(?=,|\s|$)"
    drops = COSTS
    events = (
        Says(
            EventKind.SKIPPED,
            r"The grad norm is (?:nan|inf)\. Skipping updating the model",
            hint="Skipping updating the model",
            signal="grad_norm",
        ),
    )
    _valid = re.compile(r"\[valid\]([^\[]*)")
    _steps: EpochSteps

    def record_of(self, match: "re.Match[str]", line: str) -> tuple[int | None, Pairs] | None:
        if match["results"] is None:
            return super().record_of(match, line)
        valid = self._valid.search(line)
        found = re.findall(self.pairs, valid[1]) if valid else []
        return None, self.kept([(f"valid/{label}", text) for label, text in found])

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        _, pairs, rank = record
        if pairs[0][0] != "at_epoch":
            log.row(None, pairs, line=number_, rank=rank)
            return
        epoch = count_of(pairs[0][1])
        step = self._steps.count(epoch, count_of(pairs[1][1]), None)
        log.row(step, [*pairs[2:], ("epoch", float(epoch))], line=number_, rank=rank)

    def begin(self) -> None:
        self._steps = EpochSteps()
