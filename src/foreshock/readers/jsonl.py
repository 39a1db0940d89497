"""JSON of any kind that holds a table: lines, arrays of objects, objects of lists."""

import json
import re
from typing import Any, ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import filled, label_of_file
from foreshock.core.log_json import (
    MAX_OBJECT_BYTES,
    flat,
    flat_lists,
    objects_in,
    objects_in_lines,
    objects_in_text,
    rows_of_lists,
    rows_of_points,
    take_objects,
    text_of,
)
from foreshock.core.log_names import signal_of, step_place
from foreshock.core.reader import Reader, Sample, Source

_POINTS = re.compile(r"\s*\[\s*\[\s*\d{1,12}(?:\.\d{1,20})?\s*,\s*\d{1,15}\s*,")
"""TensorBoard's download, `[[time, step, value], …]`; it is named after its file."""


class Jsonl(Reader):
    """`{"step": 40, "loss": 3.25, "grad_norm": 1.5}`, a line a row.

    Also an array of such objects, and one object of lists (`{"loss": [3.2, 3.1]}`). Objects
    inside are flattened (`val/loss`); a missing number is `null` or absent, a number may be a
    string, and NaN stands bare or as one. The column of steps is guessed; `epoch` counts
    where nothing finer does. A column such as `split`, `mode` or `phase` tells evaluations
    from training. So this reads detectron2's metrics.json, mmcv's and MMEngine's scalars,
    the log.txt of DeiT and MAE, exports of W&B's history, DLLogger and MLPerf logs, and
    whatever people write themselves.
    """

    name: ClassVar[str] = "jsonl"
    title: ClassVar[str] = "JSON lines"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        text = sample.text.lstrip("\ufeff \t\r\n")
        if _POINTS.match(text):
            return 0.6
        if text[:1] == "[" and text[1:].lstrip()[:1] == "{":
            rows = _first_objects(text)
            return 0.95 * _surety(rows)
        lines = [line for line in sample.lines if line][:60]
        parsed = [(line, objects_in(line)) for line in lines]
        rows = [flat(one) for _, found in parsed for one in found if len(one) > 1]
        if len(rows) >= 0.6 * len(lines) and (len(rows) > 1 or not _holds_lists(text)):
            return _surety(rows)
        if text[:1] == "{":
            return 0.9 * max(_surety(_first_objects(text)), _holds_lists(text))
        begins = sum(line[:1] == "{" for line, found in parsed if found)
        return 0.5 * _surety(rows) if len(rows) >= 3 and begins >= 3 else 0.4 * _surety(rows)

    def read(self, source: Source, log: LogBuilder) -> None:
        if _is_document(source):
            text = text_of(source)
            start = len(text) - len(text.lstrip("\ufeff"))
            if _POINTS.match(text, start) and len(text) <= MAX_OBJECT_BYTES:
                take_objects(rows_of_points(text, label_of_file(source.name)), log)
                return
            if _holds_lists(text[:MAX_OBJECT_BYTES]) and len(text) <= MAX_OBJECT_BYTES:
                for found in objects_in(text):
                    take_objects(rows_of_lists(found, log), log)
                if log.num_rows:
                    return
            take_objects(objects_in_text(text, log, start), log)
        else:
            take_objects(objects_in_lines(source, log), log)


def _is_document(source: Source) -> bool:
    """Whether a file is one JSON value over several lines, or an array, rather than lines."""
    head = next(iter(source.blocks()), b"")
    text = head.decode(json.detect_encoding(head), "replace").lstrip("\ufeff \t\r\n")
    if text[:1] == "[":
        return text[1:].lstrip()[:1] in ("{", "[")
    if text[:1] != "{":
        return False
    first, _, rest = text.partition("\n")
    found = objects_in(first)
    if found:
        return not rest.strip() and bool(flat_lists(found[0]))
    return rest.lstrip()[:1] != "{" and not any(map(objects_in, rest.splitlines()[:20]))


def _first_objects(text: str) -> list[dict[str, Any]]:
    """The first few objects of an array, or of objects that spread over lines."""
    rows: list[dict[str, Any]] = []
    for _, found in objects_in_text(text, LogBuilder()):
        rows.append(flat(found))
        if len(rows) >= 20:
            break
    return rows


def _holds_lists(text: str) -> float:
    """How surely a text is an object of lists, one of them a loss or a step."""
    found = objects_in(text)
    if found:
        lists = flat_lists(found[0])
        return (0.7 if _knows(list(lists)) else 0.2) if len(lists) > 1 or _knows(list(lists)) else 0
    if text[:1] != "{":
        return 0.0
    for word in ('"loss', 'loss"', '"step', 'step"'):
        at = text.find(word, 0, 1 << 18)
        after = text[at : at + 60].partition(":")[2].lstrip()[:1] if at >= 0 else ""
        if after in ("[", "{") and after:
            return 0.6
    return 0.0


def _surety(rows: list[dict[str, Any]]) -> float:
    if not rows:
        return 0.0
    if _knows([label for row in rows for label, value in row.items() if filled(value)]):
        return 0.7
    numbers = sum(isinstance(value, (int, float)) for row in rows for value in row.values())
    return 0.25 if numbers >= len(rows) else 0.0


def _knows(labels: list[str]) -> bool:
    """Whether among labels is one of a loss, a gradient norm, or a step."""
    return any(
        step_place(one) < 1000 or signal_of(one)[0] in ("loss", "eval_loss", "grad_norm")
        for one in labels
    )
