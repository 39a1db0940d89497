"""Text logs of fairseq and metaseq: pipes, `key=value` behind a progress count, or JSON."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from foreshock.core.line_shape import Arrangement, Columns, Record, as_they_are
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.text_reader import NUMBER, Says, TextReader


class Fairseq(TextReader):
    """`2020-05-01 09:30:00 | INFO | train_inner | epoch 003:  5 / 80 loss=9.4, …, num_updates=165`.

    Old versions print `| epoch 028 | loss 3.9 | … | num_updates 9165`, new ones may print JSON
    in place of the text. A line without a progress count is the average of an epoch, so it is
    kept apart (`epoch_loss`), and so is what was validated. A loss scale is printed rounded:
    0 is one below 0.5.
    """

    name: ClassVar[str] = "fairseq"
    title: ClassVar[str] = "fairseq / metaseq"
    specificity = 0.9
    hint = "num_updates"
    record = r"num_updates\W{1,4}(?P<step>\d+)"
    pairs = rf'(?<![\w.])([a-z][a-z0-9_]{{0,40}})(?:=|": "?| )({NUMBER})(?="|,|\]|\}}|\s{{0,3}}\|)'
    whole_line = True
    regular = True
    drops = (
        r"(?:\A|_)(?:num_updates|update|ppl|wps|ups|wpb|bsz|oom|wall|train_wall|gb_free|loaders"
        r"|best_\w+|updates_per_second|tokens_per_second|load_\w+|ewps|s)\Z"
    )
    events = (
        Says(
            EventKind.NONFINITE,
            r"(?i)gradients are nan/inf|nan detected in output|loss is (?:nan|inf)",
            hint="n",
        ),
    )

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        if "done training in " in line:
            log.new_run()  # what follows belongs to the next, its first overflows too
        super().word(line, number_, log)

    def record_of(
        self, match: "re.Match[str]", line: str
    ) -> tuple[int | None, list[tuple[str, float]]] | None:
        if "epoch" not in line:
            return None
        found = super().record_of(match, line)
        if found is None:
            return None
        step, pairs = found
        is_valid = "| valid" in line or "valid on " in line or "valid_" in line
        is_inner = "num_updates=" in line or ('"update"' in line and not is_valid)
        if is_inner:
            return step, pairs
        kind = "valid_" if is_valid else "epoch_"
        return step, [(_renamed(label, kind), value) for label, value in pairs]

    def arranged(self, labels: Sequence[str], log: LogBuilder) -> Arrangement | None:
        scales = [n for n, label in enumerate(labels) if label.endswith("loss_scale")]

        def check(numbers: Columns, start: int) -> int:
            end = len(numbers[0])
            for place in scales:
                with suppress(ValueError):
                    end = min(end, numbers[place].index(0, start))
            return end

        return as_they_are(labels, check if scales else None)

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        if any(value == 0 and label.endswith("loss_scale") for label, value in record[1]):
            log.note("a loss scale that is printed as 0 is one below the precision of the print")
        super().settle(record, number_, log)


def _renamed(label: str, kind: str) -> str:
    if label == "epoch":
        return label
    return kind + label.removeprefix("valid_").removeprefix("train_")
