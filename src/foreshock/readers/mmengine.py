"""Text logs of OpenMMLab: mmengine and the older mmcv runner (mmdet, mmocr, mmseg, xtuner)."""

from collections.abc import Sequence
from typing import ClassVar

from foreshock.core.epoch_steps import count_of
from foreshock.core.line_shape import Arrangement, Columns, Record, Steps
from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS
from foreshock.core.text_reader import NUMBER, Says, TextReader


class Mmengine(TextReader):
    r"""`- mmengine - INFO - Epoch(train) [2][ 50/400]  lr: 1.0e-04  loss: 2.10  grad_norm: 1.9`.

    Values are means over a window, so that one NaN may stay for several lines. The step
    within an epoch is counted through; mmcv prints `Epoch [2][50/400]\tlr: 1.0e-04, eta: ...`.
    """

    name: ClassVar[str] = "mmengine"
    title: ClassVar[str] = "mmengine / mmcv (mmdet, mmocr, mmseg, xtuner)"
    specificity = 0.9
    hint = "]"
    record = (
        r"\b(?:(?:Epoch(?:\(train\))?\s{0,4}\[\s*(?P<at_epoch>\d+)\]\s{0,4}"
        r"|Iter(?:\(train\))?\s{0,4})\[\s*(?P<at>\d+)(?:\s*/\s*(?P<of>\d+))?\]"
        r"|(?:Epoch|Iter)\(\w{3,8}\)\s{0,4}(?:\[\s*\d+\]\s{0,4})?"
        r"\[\s*(?P<val_at>\d+)(?:\s*/\s*\d+)?\])"
        r"(?=\s+[A-Za-z][\w./@-]*: )"
    )
    pairs = rf"(?<![\w./@-])([A-Za-z][\w./@-]*): ({NUMBER})(?=\**(?:,|\s|$))"
    drops = rf"{COSTS}|\Abase_lr\Z"
    events = (
        Says(
            EventKind.RESUMED,
            r"(?i)\bresumed (?:from )?epoch:? \d+, iter:? \d+",
            hint="esumed",
        ),
    )

    def arranged(self, labels: Sequence[str], log: LogBuilder) -> Arrangement | None:
        num_at = len(labels) - len([x for x in labels if x not in ("at_epoch", "at", "of")])
        if list(labels[:num_at]) not in (["at"], ["at", "of"], ["at_epoch", "at", "of"]):
            return None
        is_epoch, has_end = labels[0] == "at_epoch", labels[num_at - 1] == "of"
        others = list(labels[num_at:])
        if not others or "" in others:
            return None

        def rows(columns: Columns) -> tuple[Steps, Columns]:
            at = [count_of(value) for value in columns[num_at - 1 - has_end]]
            if not is_epoch:
                if has_end and not log.total_steps:
                    counts = (count_of(value) for value in columns[1])
                    log.total_steps = next((one for one in counts if one), 0)
                return at, columns[num_at:]
            starts = (
                (count_of(epoch) - 1) * count_of(of)
                for epoch, of in zip(columns[0], columns[2], strict=True)
            )
            steps = [start + one for start, one in zip(starts, at, strict=True)]
            return steps, [*columns[num_at:], columns[0]]

        return Arrangement([*others, "epoch"] if is_epoch else others, rows)

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        step, pairs, rank = record
        label, at = pairs[0]
        if label == "val_at":
            pairs = [(f"val/{label}", value) for label, value in pairs[1:]]
        elif label == "at":
            step, has_end = count_of(at), len(pairs) > 1 and pairs[1][0] == "of"
            if has_end and not log.total_steps:
                log.total_steps = count_of(pairs[1][1])
            pairs = pairs[2:] if has_end else pairs[1:]
        else:
            (_, epoch), (_, at), (of_label, of), *rest = pairs
            if of_label == "of":
                step, pairs = (count_of(epoch) - 1) * count_of(of) + count_of(at), rest
            else:
                step, pairs = None, pairs[2:]
            pairs.append(("epoch", epoch))
        if pairs:
            log.row(step, pairs, line=number_, rank=rank)
