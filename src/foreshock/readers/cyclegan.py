"""`loss_log.txt` of CycleGAN and pix2pix in PyTorch, and of what is built on them."""

import re
from typing import ClassVar

from foreshock.core.epoch_steps import EpochSteps, count_of
from foreshock.core.line_shape import Record
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.text_reader import NUMBER, Says, TextReader

Pairs = list[tuple[str, float]]


class Cyclegan(TextReader):
    """`(epoch: 3, iters: 400, time: 0.31, data: 0.002) D_A: 0.12 G_A: 0.61 cycle_A: 1.02`.

    Each value is a loss of its own, named `loss_D_A` and so on; there is no total. Every
    session adds a line `==== Training Loss (date) ====` to the same file.
    """

    name: ClassVar[str] = "cyclegan"
    title: ClassVar[str] = "CycleGAN / pix2pix loss_log.txt"
    specificity = 0.93
    hint = "iters: "
    record = (
        r"\(epoch: (?P<at_epoch>\d+), iters: (?P<at>\d+), time: [\d.]+(?:, data: [\d.]+)?\)"
        r"(?P<rest>.*)"
    )
    pairs = rf"(?<![\w.])([A-Za-z]\w*): ({NUMBER})(?=,|\s|\Z)"
    events = (Says(EventKind.RESUMED, r"=== Training Loss \(.{10,40}\) ===", hint="Training Loss"),)
    _steps: EpochSteps

    def record_of(self, match: "re.Match[str]", line: str) -> tuple[int | None, Pairs] | None:
        found: list[tuple[str, str]] = re.findall(self.pairs, match["rest"])
        pairs = self.kept([(f"loss_{label}", text) for label, text in found])
        counted = self.kept([("at_epoch", match["at_epoch"]), ("at", match["at"])])
        return (None, [*counted, *pairs]) if pairs else None

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        (_, epoch), (_, at), *pairs = record[1]
        step = self._steps.count(count_of(epoch), count_of(at), None)
        log.row(step, [*pairs, ("epoch", epoch)], line=number_)

    def begin(self) -> None:
        self._steps = EpochSteps()
