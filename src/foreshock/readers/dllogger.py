"""What NVIDIA's DLLogger writes, as text and as JSON."""

import json
import re
from typing import Any, ClassVar, cast

from foreshock.core.text_reader import NUMBER, TextReader, whole

_COUNT = re.compile(r"(?i)\b(?:iteration|step|iter|global_step):?\s{1,9}(\d{1,18})")
_TUPLE = re.compile(r"\A[(\[](\d{1,18}), ?(\d{1,18})")
_PAIR = re.compile(rf"(?:\A|\s)([A-Za-z][\w./-]{{0,60}}) : ({NUMBER})(?=\s|\Z)")
_EVALUATED = re.compile(r"(?i)\A(?:val|eval|test|dev)[\w]{0,12}[._/ -]")
_MAX_JSON_CHARS = 1 << 18

Found = tuple[int | None, list[tuple[str, float]]]


class Dllogger(TextReader):
    """`DLL 2020-05-01 09:30:00.1 - Training Iteration: 12  step_loss : 9.5  learning_rate : 0.01`.

    The JSON form is `DLLL {"type": "LOG", "step": [0, 12], "data": {"train.loss": 9.5}}`: a
    step of two numbers is epoch and iteration; one of a single number sums up an epoch if
    others have two, and is kept apart (`epoch_loss`). PARAMETER lines are no records.
    """

    name: ClassVar[str] = "dllogger"
    title: ClassVar[str] = "NVIDIA DLLogger"
    specificity = 0.93
    hint = "DLL"
    record = (
        r"\bDLLL? (?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S{0,9} - (?!PARAMETER)(?P<said>.*)"
        r'|(?P<json>\{"timestamp.*))'
    )
    drops = r"(?i)time|ips\Z|per_sec|_per_s|throughput|latency|speed|frames|images_|tokens|seqs"

    _is_counted = False
    """Whether a line counted iterations within its epoch."""

    def record_of(self, match: "re.Match[str]", line: str) -> Found | None:
        if match["json"]:
            return self._from_json(match["json"])
        said: str = match["said"]
        pairs = self.kept(_PAIR.findall(said))
        head = said.partition(" : ")[0]
        if places := _TUPLE.match(said):
            return self._placed([int(places[1]), int(places[2])], pairs)
        counts = [whole(text) for text in _COUNT.findall(head)]
        is_evaluated = "Validation" in head or "Evaluation" in head
        if is_evaluated and counts:
            counts = counts[:-1]  # its own count of batches
        if counts:
            self._is_counted = True
        elif self._is_counted and not is_evaluated:
            return None, _summed_up(pairs)
        kind = "val/" if is_evaluated else ""
        return counts[-1] if counts else None, [(kind + label, value) for label, value in pairs]

    def _from_json(self, text: str) -> Found | None:
        try:
            found: Any = json.loads(text) if len(text) <= _MAX_JSON_CHARS else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        record = cast(dict[str, Any], found)
        data, step = record.get("data"), record.get("step")
        if record.get("type") != "LOG" or not isinstance(data, dict) or isinstance(step, str):
            return None
        given: list[Any] = cast(list[Any], step) if isinstance(step, list) else [step]
        places = [place for place in given if isinstance(place, int) and 0 <= place < 1 << 62]
        texts = [
            (str(label), repr(value))
            for label, value in cast(dict[Any, Any], data).items()
            if type(value) is float or (type(value) is int and abs(value) < 1 << 62)
        ]
        return self._placed(places, self.kept(texts))

    def _placed(self, places: list[int], pairs: list[tuple[str, float]]) -> Found:
        if len(places) >= 2:
            self._is_counted = True
            return places[1], pairs
        if self._is_counted:
            return None, _summed_up(pairs)
        return places[0] if places else None, pairs


def _summed_up(pairs: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Values of a whole epoch, under names of their own unless they were evaluated."""
    return [
        (label, value)
        if _EVALUATED.match(label)
        else ("epoch_" + label.removeprefix("train.").removeprefix("train_"), value)
        for label, value in pairs
    ]
