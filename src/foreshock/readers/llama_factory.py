"""`trainer_log.jsonl` of LLaMA-Factory."""

from typing import ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_json import objects_in, objects_in_lines, take_objects
from foreshock.core.reader import Reader, Sample, Source

_FILE = "trainer_log.jsonl"
_NO_SIGNAL = ("predict_loss",)


class LlamaFactory(Reader):
    """`{"current_steps": 5, "total_steps": 900, "loss": 1.5, "eval_loss": null, "lr": 4e-05}`.

    What a row does not measure is null or absent, and the last row measures nothing. New
    versions write `lr`, old ones `learning_rate`.
    """

    name: ClassVar[str] = "llama_factory"
    title: ClassVar[str] = "LLaMA-Factory, trainer_log.jsonl"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.85 if any(one.split("/")[-1] == _FILE for one in sample.children) else 0.0
        return 0.95 if any(map(_is_row, sample.lines[:200])) else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        if source.is_dir:
            names = [one for one in source.children() if one.split("/")[-1] == _FILE]
            self.read_each(source, names[:50], log)
            return
        rows = (
            (number, {label: value for label, value in row.items() if label not in _NO_SIGNAL})
            for number, row in objects_in_lines(source, log)
        )
        take_objects(rows, log)


def _is_row(line: str) -> bool:
    return '"current_steps"' in line and any(
        "current_steps" in one and "total_steps" in one for one in objects_in(line)
    )
