"""Text logs of k2's icefall."""

import re
from typing import ClassVar

from foreshock.core.epoch_steps import EpochSteps, count_of
from foreshock.core.line_shape import Record
from foreshock.core.log_builder import LogBuilder
from foreshock.core.text_reader import NUMBER, TextReader

Pairs = list[tuple[str, float]]


class Icefall(TextReader):
    """`(0/4) Epoch 1, batch 50, loss[loss=3.2, simple_loss=0.31, over 2611.00 frames. ],
    tot_loss[loss=3.31, simple_loss=0.33, over 1.9e5 frames. ], batch size: 61, lr: 2.2e-02`.

    The first bracket is of one batch, the second a running mean, kept as `tot_`. What is
    validated stands in `Epoch 1, validation: loss=0.21, ...`. Batches are counted from 0 in
    every epoch.
    """

    name: ClassVar[str] = "icefall"
    title: ClassVar[str] = "icefall (k2)"
    specificity = 0.92
    hint = "loss="
    record = (
        r"(?:\((?P<rank>\d{1,4})/\d{1,4}\) )?\bEpoch (?P<at_epoch>\d+), "
        r"(?:batch (?P<at>\d+), (?=.{0,60}?\bloss\[)|(?P<validation>validation): )"
    )
    pairs = rf"\b([A-Za-z]\w*)(?:=|: )({NUMBER})(?=[,\]\s]|$)"
    _parts = re.compile(
        rf"\b(?P<tot>tot_)?loss\[(?P<inner>[^\]]*)|\b(?P<label>lr|grad_scale): (?P<value>{NUMBER})"
    )
    _steps: EpochSteps

    def record_of(self, match: "re.Match[str]", line: str) -> tuple[int | None, Pairs] | None:
        found: list[tuple[str, str]] = []
        if match["validation"]:
            found = [(f"val/{x}", text) for x, text in self._all(line) if "loss" in x]
            return None, self.kept(found)
        found += [("at_epoch", match["at_epoch"]), ("at", match["at"])]
        for part in self._parts.finditer(line):
            if part["label"]:
                found.append((part["label"], part["value"]))
            else:
                tot = part["tot"] or ""
                found += [(f"{tot}{x}", text) for x, text in self._all(part["inner"])]
        return None, self.kept(found)

    def _all(self, text: str) -> list[tuple[str, str]]:
        return re.findall(self.pairs, text)

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
