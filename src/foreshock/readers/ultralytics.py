"""Console tables of Ultralytics YOLO (v5, v8 and later)."""

import re
from typing import ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.reader import Reader, Sample, Source
from foreshock.core.text_reader import SHARED_EVENTS, number, whole

_MAX_WAITING = 4096
_HEADER = re.compile(r"\A\s*Epoch\s+(?:GPU_mem|gpu_mem)\s+(?P<names>\S.*)")
_ROW = re.compile(
    r"\A\s*(?P<epoch>\d{1,7})/(?P<of>\d{1,7})\s+[\d.]+[GMK]?B?\s+"
    r"(?P<values>(?:[-+.\deE]+|nan|inf|-inf)(?:\s+(?:[-+.\deE]+|nan|inf|-inf)){1,15})"
    r"(?=:|\s|\Z)"
)
_TEST_HEADER = re.compile(r"\A\s*(?:Class\s+Images|classes\s+top1)")
_TEST = re.compile(r"\A\s*all\s+(?P<values>[-+.\deE]+(?:\s+(?:[-+.\deE]+|nan)){1,15})\s*\Z")
_COUNTS = frozenset(("instances", "labels", "targets", "size", "img_size", "imgsz", "total"))
_DEFAULT = ("box_loss", "cls_loss", "dfl_loss", "Instances", "Size")
_DETECTION = ("P", "R", "mAP50", "mAP50-95")

Pairs = list[tuple[str, float]]


class Ultralytics(Reader):
    """`   3/20      5.1G      1.21     0.84     1.03     31     640: 100%|███| 9/9 [...]`.

    The line `Epoch  GPU_mem  box_loss ...` names the columns, and may come later in an
    excerpt. Rows are redrawn while an epoch runs: its last one counts. `all  50  120  0.7 ...`
    below is the validation. The loss is the sum of its parts.
    """

    name: ClassVar[str] = "ultralytics"
    title: ClassVar[str] = "Ultralytics YOLO console"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        has_header = any(_HEADER.match(x) for x in sample.lines if "pu_mem" in x or "PU_mem" in x)
        has_row = any(_ROW.match(x) for x in sample.lines if "/" in x)
        has_test = any(_TEST_HEADER.match(x) for x in sample.lines if "Class" in x)
        return 0.92 if has_row and has_header else 0.6 if has_row and has_test else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        names: tuple[str, ...] = ()
        waiting: list[tuple[int, int | None, list[str]]] = []
        now: tuple[int, int, list[str]] | None = None
        for number_, line in source.lines():
            log.num_lines = number_
            if "/" in line and (row := _ROW.match(line)):
                epoch = int(row["epoch"])
                if now is not None and now[1] != epoch:
                    waiting.append(now)
                now = (number_, epoch, row["values"].split())
                log.total_steps = log.total_steps or whole(row["of"])
            elif "pu_mem" in line.lower() and (header := _HEADER.match(line)):
                if now is not None:
                    waiting.append(now)
                    now = None
                if not names:
                    names = tuple(header["names"].split())
                self._give(waiting, names, log)
                names = tuple(header["names"].split())
            elif "all " in line and (test := _TEST.match(line)):
                if now is not None:
                    waiting.append(now)
                    now = None
                waiting.append((number_, None, test["values"].split()))
            else:
                self._word(line, number_, log)
            if waiting and (names or len(waiting) > _MAX_WAITING):
                self._give(waiting, names or _DEFAULT, log)
        if now is not None:
            waiting.append(now)
        self._give(waiting, names or _DEFAULT, log)

    @staticmethod
    def _give(
        waiting: list[tuple[int, int | None, list[str]]], names: tuple[str, ...], log: LogBuilder
    ) -> None:
        """Give rows to the log, now that the names of the columns are known."""
        for line, epoch, texts in waiting:
            values = [number(text) for text in texts]
            if epoch is None:
                log.row(None, _tested(values), line=line)
                continue
            parts: Pairs = [
                (name, value)
                for name, value in zip(names, values, strict=False)
                if value is not None and name.lower() not in _COUNTS
            ]
            if len(parts) > 1 and not any(name == "loss" for name, _ in parts):
                log.note("the loss is the sum of the parts that the table names")
                parts.insert(0, ("loss", sum(value for _, value in parts)))
            elif len(parts) == 1:
                parts = [("loss", parts[0][1])]
            log.row(epoch, parts, line=line)
        waiting.clear()

    @staticmethod
    def _word(line: str, number_: int, log: LogBuilder) -> None:
        for says in SHARED_EVENTS:
            if says.hint in line and says.pattern.search(line):
                log.event(says.kind, line=number_, text=line, signal=says.signal)


def _tested(values: list[float | None]) -> Pairs:
    """What was evaluated: images and objects, then four numbers for boxes, and four more for
    masks or poses; a classifier has two alone."""
    if len(values) == 2:
        names: list[str] = ["top1_acc", "top5_acc"]
    else:
        values = values[2:]
        names = [f"{name}{more}" for more in ("", "_m") for name in _DETECTION]
    return [
        (f"eval_{name}", value)
        for name, value in zip(names, values, strict=False)
        if value is not None
    ]
