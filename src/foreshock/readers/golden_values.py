"""The golden values that Megatron-LM's and NeMo's functional tests compare with."""

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar, cast

from foreshock.core.errors import LogError
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import as_step, is_noise
from foreshock.core.log_json import MAX_OBJECT_BYTES, text_of
from foreshock.core.log_names import signal_of
from foreshock.core.reader import Reader, Sample, Source

_SIGNATURE = re.compile(r'\{\s*"start_step"\s*:\s*\d+\s*,\s*"end_step"\s*:')


class GoldenValues(Reader):
    """`{"lm loss": {"start_step": 1, "end_step": 9, "step_interval": 5, "values": {"5": 9.1}}}`.

    The string "nan" says that there is no value at that step: the test was never run so far,
    or the metric is not written there. It is no NaN; a bare NaN would be one. In older files
    `values` is a list, one value an interval.
    """

    name: ClassVar[str] = "golden_values"
    title: ClassVar[str] = "Megatron-LM golden values"

    def recognises(self, sample: Sample) -> float:
        begins = sample.text.lstrip("\ufeff \t\r\n")[:1] == "{"
        return 0.95 if begins and _SIGNATURE.search(sample.text) else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        try:
            found = json.loads(text_of(source, MAX_OBJECT_BYTES).lstrip("\ufeff"))
        except (ValueError, RecursionError) as error:
            raise LogError(f"{source.name} is not whole JSON: {str(error)[:80]}") from error
        if not isinstance(found, dict):
            raise LogError(f"{source.name} is not a JSON object")
        rows: dict[int, list[tuple[str, float]]] = {}
        metrics = [
            (label, cast("dict[str, Any]", metric))
            for label, metric in found.items()
            if isinstance(metric, dict) and not is_noise(label)
        ]
        reached = False
        for label, metric in sorted(metrics, key=lambda one: signal_of(one[0])[0] != "loss"):
            end = as_step(metric.get("end_step"))
            if end is not None:
                log.total_steps = max(end, log.total_steps or 0)
            for step, value in _values(metric):
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    if isinstance(value, float) or abs(value) < 1 << 62:
                        rows.setdefault(step, []).append((label, float(value)))
                elif value == "nan":
                    reached = True
        if reached:
            log.note('the string "nan" stands for a step without a value: left out')
        for number, step in enumerate(sorted(rows), 1):
            log.row(step, rows[step], line=0)
            log.num_lines = number


def _values(metric: dict[str, Any]) -> Iterator[tuple[int, Any]]:
    """Step and value of each entry of one metric."""
    values = metric.get("values")
    if isinstance(values, dict):
        for key, value in values.items():
            step = as_step(key)
            if step is not None:
                yield step, value
    elif isinstance(values, list):
        start, interval = as_step(metric.get("start_step")), as_step(metric.get("step_interval"))
        for place, value in enumerate(values):
            step = (start or 0) + place * (interval or 1)
            if step < 1 << 62:
                yield step, value
