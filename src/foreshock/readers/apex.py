"""Logs of which only the overflows of apex are understood."""

from typing import ClassVar

from foreshock.core.reader import Sample
from foreshock.core.text_reader import SHARED_EVENTS, TextReader


class Apex(TextReader):
    """`Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 4096.0`.

    Every text reader understands these lines; this one is for logs whose records are of no
    known format, or that have none. They name no step.
    """

    name: ClassVar[str] = "apex"
    title: ClassVar[str] = "apex AMP"
    record = r"(?!)"
    hint = "\0"

    def recognises(self, sample: Sample) -> float:
        says = next(one for one in SHARED_EVENTS if one.hint == "radient overflow")
        found = any(says.hint in line and says.pattern.search(line) for line in sample.lines)
        return 0.35 if found else 0.0
