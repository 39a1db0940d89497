"""`trainer_state.json` of the Hugging Face Trainer, and of what is built on it."""

import re
from typing import ClassVar

from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_columns import as_step, is_noise
from foreshock.core.log_json import Object, objects_in_text, text_of
from foreshock.core.reader import Reader, Sample, Source

_FILE = "trainer_state.json"
_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_CHECKPOINT = re.compile(r"(?:\A|/)checkpoint-(\d{1,15})/trainer_state\.json\Z")
_FACTS = ("num_train_epochs", "train_batch_size", "logging_steps", "best_metric")
_FIELDS = ("max_steps", "global_step", *_FACTS)
_NUMBER = re.compile(r"\s*:\s*(-?\d[\d.eE+-]{0,30})")
_MAX_RUNS = 50


class HfTrainerState(Reader):
    """`"log_history": [{"step": 10, "loss": 2.5, "grad_norm": NaN, "learning_rate": 1e-05}, …]`.

    NaN stands bare, which strict JSON does not allow. Rows of an evaluation have `eval_loss`
    and no `loss`. The last row, with `train_runtime`, holds the average loss of the whole run
    as `train_loss`: it belongs to the facts, not to the series. Of a directory with
    checkpoints, the one that reaches furthest is read: each holds the history from step 1.
    """

    name: ClassVar[str] = "hf_trainer_state"
    title: ClassVar[str] = "Hugging Face Trainer, trainer_state.json"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.9 if any(one.split("/")[-1] == _FILE for one in sample.children) else 0.0
        text = sample.text.lstrip("\ufeff \t\r\n")
        if text[:1] != "{" or not (match := _HISTORY.search(text)):
            return 0.0
        # A row that holds a history among other rows is another format's.
        end = text.find("\n")
        is_row = 0 <= end < match.start() and text[:end].rstrip().endswith("}")
        return 0.0 if is_row else 0.97

    def read(self, source: Source, log: LogBuilder) -> None:
        if not source.is_dir:
            _take(text_of(source), log)
            return
        for place, texts in enumerate(_runs(source, log)):
            if place:
                log.new_run()
            _take(max(texts, key=_reach), log)


def _runs(source: Source, log: LogBuilder) -> list[list[str]]:
    """Of each folder the states that may be the furthest: its own, and the last checkpoint's."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in source.children():
        if name.split("/")[-1] != _FILE:
            continue
        match = _CHECKPOINT.search(name)
        folder = name[: match.start()] if match else name[: -len(_FILE)].rstrip("/")
        found.setdefault(folder, []).append((int(match[1]) if match else -1, name))
    if len(found) > _MAX_RUNS:
        log.note(f"only the first {_MAX_RUNS} folders with a {_FILE} were read")
    runs: list[list[str]] = []
    for states in list(found.values())[:_MAX_RUNS]:
        names = [max(states)[1], *(name for number, name in states if number < 0)]
        runs.append([text_of(source.child(name)) for name in reversed(dict.fromkeys(names))])
    return runs


def _reach(text: str) -> int:
    return int(_fields(text).get("global_step", "0").partition(".")[0] or 0)


def _fields(text: str) -> dict[str, str]:
    """What the state says of the run, beside its history."""
    found: dict[str, str] = {}
    for name in _FIELDS:
        at = text.rfind(f'"{name}"')
        if at >= 0 and (match := _NUMBER.match(text, at + len(name) + 2)):
            found[name] = match[1]
    return found


def _take(text: str, log: LogBuilder) -> None:
    fields = _fields(text)
    total = as_step(fields.get("max_steps"))
    if total:
        log.total_steps = total
    log.facts.update((name, fields[name]) for name in _FACTS if name in fields)
    start = _HISTORY.search(text)
    if start is None:
        return
    labels: dict[str, bool] = {}
    for number, row in objects_in_text(text, log, start.end()):
        log.num_lines += 1
        _row(row, number, labels, log)


def _row(row: Object, number: int, labels: dict[str, bool], log: LogBuilder) -> None:
    if "train_runtime" in row:
        for label, value in row.items():
            if label.startswith("train_"):
                log.facts[label] = str(value)[:40]
        row = {label: value for label, value in row.items() if label.startswith("eval_")}
    pairs: list[tuple[str, float]] = []
    for label, value in row.items():
        kept = labels.get(label)
        if kept is None:
            kept = labels[label] = label != "step" and not is_noise(label)
        if kept and (value.__class__ is float or _is_small(value)):
            pairs.append((label, float(value)))
    if pairs:
        log.row(as_step(row.get("step")), pairs, line=number)


def _is_small(value: object) -> bool:
    return value.__class__ is int and abs(value) < 1 << 62  # pyright: ignore[reportArgumentType]
