"""Text logs of MindSpore: LossMonitor, MindFormers, MindYOLO, MindCV and the like."""

import re
from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import ClassVar

from foreshock.core.epoch_steps import EpochSteps, count_of
from foreshock.core.line_shape import Arrangement, Columns, Record, Steps
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.text_reader import NUMBER, Says, TextReader

Pairs = list[tuple[str, float]]
_OVERFLOW = "overflow cond: True"


class Mindspore(TextReader):
    """`Epoch:[  1/  2], step:[   40/ 900], loss: 7.1, lr: 1e-05, overflow cond: False, ...`.

    That is MindFormers (older: `loss:[7.1/7.3]`, the second a mean); LossMonitor prints
    `epoch: 1 step: 40, loss is 7.1`, MindYOLO `Epoch 1/9, Step 40/900, imgsize (640, 640),
    loss: 7.1`. Steps within an epoch are counted through. "overflow, still update" says that
    the step was made all the same, and a scale that never falls.
    """

    name: ClassVar[str] = "mindspore"
    title: ClassVar[str] = "MindSpore (LossMonitor, MindFormers, MindYOLO, MindCV)"
    specificity = 0.87
    hint = "loss"
    record = (
        r"\bepoch: ?(?P<monitor_epoch>\d+),? +step: ?(?P<monitor>\d+), loss is "
        r"|\bEpoch:? ?\[? ?(?P<at_epoch>\d+)(?:/ *\d+)?\]?(?:, | \| )"
        r"(?:[Ss]tep|batch):? ?\[? *(?P<at>\d+)(?:/ *(?P<of>\d+))?\]?(?:, | \| )"
        r"(?=imgsize|[Ll]oss(?!\[)|lr: )"
        r"|\bEpoch:\[ *(?P<former_epoch>\d+)/ *\d+\], ?"
        r"step:\[ *(?P<former>\d+)/ *(?P<former_of>\d+)\]"
    )
    pairs = rf"([A-Za-z][\w ]{{0,30}}?) ?(?::|\bis\b) ?(?:\[ ?)?({NUMBER})(?=[\]/,\s}}]|$)(?! \d)"
    labels: ClassVar[Mapping[str, str]] = dict.fromkeys(("Epoch", "epoch", "step", "Step"), "")
    drops = COSTS
    events = (
        Says(
            EventKind.OVERFLOW,
            r"\boverflow, (?:still update|drop step), loss scale adjust to "
            rf"\[?(?P<loss_scale>{NUMBER})",
            hint="loss scale adjust to",
            signal="grad_norm",
        ),
        Says(EventKind.OVERFLOW, r"(?i)overflow cond: \[? ?True", hint="True", signal="grad_norm"),
        Says(EventKind.SKIPPED, r"is_skip: \[ ?True", hint="is_skip: ", signal="grad_norm"),
    )
    regular = True
    _steps: EpochSteps

    def record_of(self, match: "re.Match[str]", line: str) -> tuple[int | None, Pairs] | None:
        found = super().record_of(match, line)
        if found and "True" in line and any(says.pattern.search(line) for says in self.events):
            found[1].append((_OVERFLOW, 1.0))
        return found

    def arranged(self, labels: Sequence[str], log: LogBuilder) -> Arrangement | None:
        has_end = labels[2:3] != [] and labels[2].endswith("of")
        others = list(labels[2 + has_end :])
        if not others or "" in labels:
            return None

        def rows(columns: Columns) -> tuple[Steps, Columns]:
            epochs, at = (list(map(count_of, column)) for column in columns[:2])
            ends = map(count_of, columns[2]) if has_end else repeat(None, len(at))
            return (
                list(map(self._steps.count, epochs, at, ends)),
                [*columns[2 + has_end :], columns[0]],
            )

        return Arrangement([*others, "epoch"], rows)

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        (_, epoch), (_, at), *pairs = record[1]
        of = count_of(pairs.pop(0)[1]) if pairs and pairs[0][0].endswith("of") else None
        if not pairs:
            return
        is_overflow = pairs[-1][0] == _OVERFLOW
        if is_overflow:
            pairs.pop()
        step = self._steps.count(count_of(epoch), count_of(at), of)
        pairs.append(("epoch", epoch))
        log.row(step, pairs, line=number_, rank=record[2])
        if is_overflow:
            log.event(EventKind.OVERFLOW, line=number_, text=_OVERFLOW, signal="grad_norm")

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        if "still update" in line:
            log.facts["overflowed_steps"] = "updated all the same"
        super().word(line, number_, log)

    def begin(self) -> None:
        self._steps = EpochSteps()
