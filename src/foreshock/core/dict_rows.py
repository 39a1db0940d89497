"""Rows of named numbers that programs print as a dict, in the middle of other text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from foreshock.core.spans import Span
from foreshock.core.text_reader import NUMBER, number, whole

DICT = r"\{\s*(?=['\"][\w/. @()%+-]{1,80}['\"]\s*:)(?P<rest>[^{}]{3,20000})(?P<end>\}?)"
"""A dict on one line, with or without its end."""

_DICT = re.compile(DICT)
_PAIR = re.compile(
    rf"['\"]([^'\"]{{1,120}})['\"]\s*:\s*['\"]?(?:[a-z][\w.]{{0,20}}\()?({NUMBER})"
    r"(?=\)?['\"]?\s*(?:,|\}))"
)
_STEP = re.compile(
    r"['\"](?:global_step/max_steps|(?:global_)?step|iteration)['\"]\s*:\s*['\"]?"
    r"(\d{1,15})(?:/(\d{1,15}))?['\"]?\s*[,}]"
)
_BESIDE = frozenset(("epoch", "learning_rate", "lr", "grad_norm", "step", "global_step"))


@dataclass(slots=True)
class DictRow:
    """A dict of numbers, as Hugging Face's Trainer prints it.

    Attributes:
        kind: `train` (a step), `eval`, `summary` (averages of the whole run).
        pairs: label and value.
        step: if it names one.
        total_steps: if it names them.
        start: place in the line.
        end: place behind it.
        is_json: whether its quotes are double.
    """

    kind: str
    pairs: list[tuple[str, float]]
    step: int | None
    total_steps: int | None
    start: int
    end: int
    is_json: bool


def dict_rows(line: str) -> Iterator[DictRow]:
    """The dicts of a line that are rows of a log; configurations and others are left out.

    A pair that is cut off is no pair.

    >>> [(row.kind, row.pairs) for row in dict_rows("{'loss': '0.5', 'epoch': 1.0} {'a': 1}")]
    [('train', [('loss', 0.5), ('epoch', 1.0)])]
    """
    for match in _DICT.finditer(line):
        text = match["rest"] + match["end"]
        found = ((label, number(value)) for label, value in _PAIR.findall(text))
        pairs = [(label, value) for label, value in found if value is not None]
        kind = _kind({label for label, _ in pairs})
        if kind:
            told = _STEP.search(text) if "step" in text or "iteration" in text else None
            yield DictRow(
                kind=kind,
                pairs=pairs,
                step=whole(told[1]) if told else None,
                total_steps=whole(told[2]) if told and told[2] else None,
                start=match.start(),
                end=match.end(),
                is_json=text.lstrip()[:1] == '"',
            )


def numbers_of_row(line: str) -> list[Span] | None:
    """Where the numbers of a row stand, that has the whole line for itself and no step."""
    match = _DICT.match(line)
    if match is None or not match["end"] or line[match.end() :].strip():
        return None
    spans = [(pair[1], *pair.span(2)) for pair in _PAIR.finditer(line, match.start(), match.end())]
    is_plain = _kind({label for label, _, _ in spans}) == "train" and not _STEP.search(line)
    return spans if is_plain else None


def row_of(pairs: list[tuple[str, float]]) -> DictRow:
    """The row of a training step, from its numbers."""
    return DictRow(
        kind="train", pairs=pairs, step=None, total_steps=None, start=0, end=0, is_json=False
    )


def _kind(labels: set[str]) -> str:
    if "train_runtime" in labels:
        return "summary"
    if "loss" in labels:
        return "train"
    if any(label.startswith("eval_") for label in labels):
        return "eval" if labels & {"eval_loss", "eval_runtime", "epoch"} else ""
    if any(label.endswith("loss") or label.startswith("loss/") for label in labels):
        return "train" if labels & _BESIDE else ""
    return ""
