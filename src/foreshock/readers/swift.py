"""`logging.jsonl` of ms-swift."""

from typing import Any, ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import as_step
from foreshock.core.log_json import Object, objects_in, objects_in_lines, take_objects
from foreshock.core.reader import Reader, Sample, Source

_FILE = "logging.jsonl"
_KEYS = ("global_step/max_steps", "iteration")


class Swift(Reader):
    """`{"loss": "1.5", "grad_norm": 0.75, "epoch": 0.1, "global_step/max_steps": "10/900"}`.

    Step and length of the run stand in one string; with Megatron-SWIFT under `iteration`.
    Numbers may be strings. The rows behind the training (`train_runtime`, the paths of the
    best checkpoint) are no part of the series.
    """

    name: ClassVar[str] = "swift"
    title: ClassVar[str] = "ms-swift, logging.jsonl"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.85 if any(one.split("/")[-1] == _FILE for one in sample.children) else 0.0
        for line in sample.lines[:200]:
            if any(f'"{key}"' in line for key in _KEYS):
                found = objects_in(line)
                if any(_step(one, key)[1] is not None for one in found for key in _KEYS):
                    return 0.95
        return 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        if source.is_dir:
            names = [one for one in source.children() if one.split("/")[-1] == _FILE]
            self.read_each(source, names[:50], log)
            return
        take_objects(((number, _row(one)) for number, one in objects_in_lines(source, log)), log)


def _row(found: Object) -> Object:
    row: Object = {}
    for label, value in found.items():
        if label in _KEYS:
            row["step"], total = _step(found, label)
            if total:
                row["max_steps"] = total
        else:
            row[label] = value
    return row


def _step(found: Object, key: str) -> tuple[int | None, int | None]:
    """Step and length of the run that `"10/900"` names."""
    text: Any = found.get(key)
    if not isinstance(text, str) or len(text) > 40:
        return as_step(text), None
    step, _, total = text.partition("/")
    return as_step(step), as_step(total)
