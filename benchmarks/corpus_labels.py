"""What a corpus manifest says of each log: the class, and where its events are.

A manifest is JSON lines with `id`, `file`, `label_class`, `label` (words with step numbers)
and `step_range`. Where events lie was read from the words, and from the curve where the words
leave some out, and stands in `corpus_events.json`; for a log that is not in it, the words are
searched by rules.
"""

import json
import re
from dataclasses import dataclass
from math import inf
from pathlib import Path

CLASSES: dict[str, tuple[str, ...]] = {
    "healthy": ("healthy", "benign_outliers"),
    "benign outliers (negative)": ("healthy", "benign_outliers"),
    "recovering spike": ("recovering_spike",),
    "divergence": ("divergence",),
    "nan": ("nan",),
    "loss-scale collapse": ("loss_scale_collapse",),
    "grad-norm explosion / skipped steps": ("grad_norm_explosion",),
    "plateau / dead run": ("plateau",),
    "eval-only nan": ("eval_only_nan",),
}
"""Label to the classes that are right. `healthy` and `benign_outliers` are one answer: nothing
to be done; labels call a log benign for traps (two runs in one file) that leave no outlier."""

QUIET = ("healthy", "benign_outliers", "not_judgeable")
FEW_READINGS = 3
"""A quiet log of up to three readings may be called not judgeable."""

_EVENTS = Path(__file__).with_name("corpus_events.json")
_LASTING = ("divergence", "nan", "loss-scale collapse", "plateau / dead run")
_NOT_EVENTS = re.compile(r"outlier|precursor|without effect|plateau \d|recovered|back to|early")
_CLAUSES = re.compile(r";|, then| then |, ")
_ASIDES = re.compile(r"\([^()]*\)|->\s*~?[\d.eE+-]+")
_SPAN = re.compile(
    r"(?:\b(?:steps?|iter|iteration|epoch|at|from|over)\s+|\[\s*)~?(\d{1,8})(?:\s*[-/]\s*~?(\d{1,8}))?"
)


@dataclass(frozen=True, kw_only=True)
class Label:
    """What is known of one log.

    Attributes:
        right: classes that are right; empty if the log is not scored.
        events: spans of steps, first and last, in which something happened. The last one
            is open (to the end of the log) where the class says that it stayed.
    """

    id: str
    file: Path
    label_class: str
    words: str
    right: tuple[str, ...]
    events: tuple[tuple[float, float], ...]
    num_steps: int | None

    @property
    def is_scored(self) -> bool:
        """Whether the class counts."""
        return bool(self.right)

    @property
    def is_quiet(self) -> bool:
        """Whether the log is labelled as healthy, or benign."""
        return self.right[:1] == ("healthy",)


def load_labels(corpus: Path) -> list[Label]:
    """The labels of a corpus, in the order of its `MANIFEST.jsonl`."""
    known = json.loads(_EVENTS.read_text(encoding="utf-8"))
    found: list[Label] = []
    for line in (corpus / "MANIFEST.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        kind = entry["label_class"]
        right = CLASSES.get(kind, ())
        quiet = right[:1] == ("healthy",)
        events: tuple[tuple[float, float], ...] = ()
        if right and not quiet:
            events = _known(known.get(entry["id"])) or events_in(
                entry["label"], entry.get("step_range"), lasts=kind in _LASTING
            )
        found.append(
            Label(
                id=entry["id"],
                file=corpus / entry["file"],
                label_class=kind,
                words=entry["label"],
                right=right,
                events=events,
                num_steps=entry.get("n_steps"),
            )
        )
    return found


def _known(spans: list[list[float | None]] | None) -> tuple[tuple[float, float], ...]:
    return tuple((first or 0.0, inf if last is None else last) for first, last in spans or ())


def events_in(
    words: str, step_range: list[float] | None, *, lasts: bool
) -> tuple[tuple[float, float], ...]:
    """Spans of steps that a label names, in order, overlapping ones joined.

    Numbers in brackets are values, clauses on outliers and precursors name no event, and a
    step lies within the log's range. The last event goes on to the end where it `lasts`.

    >>> events_in("spike at [380-400 (0.9 -> 2.8)]; outlier at 130", [10, 1400], lasts=False)
    ((380.0, 400.0),)
    """
    low, high = (float(one) for one in step_range) if step_range else (0.0, 1e9)
    spans: list[tuple[float, float]] = []
    for clause in _CLAUSES.split(_ASIDES.sub(" ", _ASIDES.sub(" ", words))):
        if _NOT_EVENTS.search(clause):
            continue
        for first, last in _SPAN.findall(clause):
            start, end = float(first), float(last or first)
            if low <= start <= high + 1 and start <= end <= high + 1:
                spans.append((start, end))
    spans.sort()
    joined: list[tuple[float, float]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    if joined and lasts:
        joined[-1] = (joined[-1][0], inf)
    return tuple(joined)
