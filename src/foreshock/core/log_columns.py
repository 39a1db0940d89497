"""What the columns of a table are: which one counts steps, which one names the split, …"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import cast

from foreshock.core.log_names import signal_of, step_place
from foreshock.core.text_reader import number, whole

Row = Mapping[str, object]

MIN_COMPLETE = 10
"""Rows that must all have shown a loss before one without it counts as NaN. Our choice: one
more than the usual logging interval of 10 leaves out between two losses."""

_WORDS = re.compile(r"[a-z0-9]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TIMING = _words(
    "time times secs sec seconds second ms elapsed elapsedtime eta runtime duration throughput "
    "speed tps tgs tflops tflop flops flos mfu hfu memory mem vram timestamp datetime date wall "
    "wallclock walltime percentage pct remaining gib mb gb timing"
)
_COUNTERS = _words(
    "tokens num_tokens total_tokens num_input_tokens_seen consumed_samples consumed_tokens "
    "n_parameters num_samples samples_seen tokens_seen consumed_train_samples"
)
_SPLIT = _words("split mode phase prefix stage subset partition kind type event dataset set name")
_TRAIN_WORDS = _words("train training trn tr learn fit")
_EVAL_WORDS = _words("val valid validation eval evaluation evaluate test dev holdout")
_RANK = _words("rank local_rank global_rank process_rank process_index proc_rank")
_RUN = _words("run run_id run_name run_uuid runid runname trial trial_id")
_TOTAL = _words(
    "total_steps max_steps total_iters max_iters num_training_steps total_iterations "
    "train_iters max_iterations"
)
_NAME = _words("key metric tag metric_name metric_key")
_VALUE = _words("value metric_value")
_LOSS_PARTS = _words(
    "entropy value policy gradient critic actor kl aux reg adv gan gen disc generator "
    "discriminator box cls obj dfl mask rpn recon reconstruction style content perceptual g d"
)
"""Words before `loss` that name a part of it."""
_TAG = re.compile(r"(?:\A|[-_])tag-(.{1,200})\Z")
KNOWN = frozenset({"loss", "eval_loss", "grad_norm", "lr", "loss_scale", "param_norm"})
"""Signals by which a table is known to be of a training."""
_NO_STEP = _TIMING | _words("loss lr seed epoch id batch_size size rank tokens samples")


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Which columns are no signals but say what the others belong to; None where there is none.

    Attributes:
        step: counts steps; `epoch` where nothing finer does.
        epoch: counts epochs.
        in_epoch: whether steps begin anew in every epoch.
        split: names what a row was measured on, in words.
        name, value: of a table with one value a row, its name beside it.
        total_steps: what a column of that name says.
        loss: the column of the training loss.
        companions: columns that stood beside every loss and nowhere else.
        usual: columns that ever stood beside a loss.
    """

    step: str | None = None
    epoch: str | None = None
    in_epoch: bool = False
    split: str | None = None
    rank: str | None = None
    run: str | None = None
    name: str | None = None
    value: str | None = None
    total_steps: int | None = None
    loss: str | None = None
    companions: frozenset[str] = frozenset()
    usual: frozenset[str] = frozenset()


def plain(label: str) -> str:
    """A label in lower_snake_case."""
    return "_".join(_WORDS.findall(label[:120].lower()))


@lru_cache(maxsize=4096)
def is_noise(label: str) -> bool:
    """Whether a label names a time, a speed, a memory or a counter, which are no signals.

    >>> [is_noise(label) for label in ("train_samples_per_second", "memory(GiB)", "eval_loss")]
    [True, True, False]
    """
    words = set(_WORDS.findall(label[:120].lower()))
    return bool(words & _TIMING) or plain(label) in _COUNTERS or plain(label) in _TOTAL


@lru_cache(maxsize=4096)
def evaluates(text: str) -> str:
    """The word by which a text names an evaluation; empty if it names none.

    >>> evaluates("val"), evaluates("dev-clean"), evaluates("train")
    ('val', 'dev', '')
    """
    words = _WORDS.findall(text[:60].lower())
    if not words or words[0] in _TRAIN_WORDS:
        return ""
    return next((word for word in words if word in _EVAL_WORDS), "")


def label_of_file(name: str) -> str:
    """What TensorBoard's download is of, by its file's name.

    >>> label_of_file("run-a-tag-train_loss.csv"), label_of_file("my_grad_norm.json")
    ('train_loss', 'grad_norm')
    """
    stem = name.removesuffix(".gz").rpartition(".")[0] or name
    if match := _TAG.search(stem):
        return match[1]
    words = re.split(r"[-_. ]+", stem)
    for start in range(len(words)):
        label = "_".join(words[start:])
        if signal_of(label)[0] in KNOWN:
            is_part = start > 0 and words[start] == "loss" and words[start - 1] in _LOSS_PARTS
            return "_".join(words[start - 1 :]) if is_part else label
    return stem


def filled(value: object) -> bool:
    """Whether a field holds anything."""
    return value is not None and value != ""


def as_step(value: object) -> int | None:
    """The step that a field names; of a list (epoch, step) the last one.

    >>> as_step(12), as_step("1,200"), as_step(3.0), as_step(0.5), as_step([2, 40]), as_step(-1)
    (12, 1200, 3, None, 40, None)
    """
    if isinstance(value, list) and value:
        value = cast("list[object]", value)[-1]
    found: int | None = None
    if isinstance(value, str):
        if 0 < len(value) < 40:
            try:
                found = int(value)
            except ValueError:
                found = whole(value)
    elif isinstance(value, float):
        found = int(value) if value.is_integer() and value < 1 << 62 else None
    elif isinstance(value, int) and not isinstance(value, bool):
        found = value
    return found if found is not None and 0 <= found < 1 << 62 else None


def guess_roles(rows: Sequence[Row], wanted: Mapping[str, str] | None = None) -> Roles:
    """What the columns of a table are, judged by their names and its first rows.

    Args:
        rows: label to value; numbers may be strings.
        wanted: labels that the user named, to the signal that each measures; `step` too.
    """
    wanted = wanted or {}
    labels = list(dict.fromkeys(label for row in rows for label in row))
    epoch = _first(labels, ("epoch", "epochs", "train_epoch", "trainer_epoch", "epoch_num"))
    split = next((one for one in labels if _is_split(one, rows)), None)
    name = next((one for one in labels if plain(one) in _NAME and _is_words(one, rows)), None)
    value = _first(labels, _VALUE) if name is not None else None
    step = _step(labels, rows, wanted)
    loss, companions, usual = _beside_loss(labels, rows, step, split)
    if step is None and epoch is not None and _counts(epoch, rows):
        step, epoch = epoch, None
    total = next((one for one in labels if plain(one) in _TOTAL and one != step), None)
    return Roles(
        step=step,
        epoch=epoch,
        in_epoch=step is not None and epoch is not None and _in_epoch(step, epoch, split, rows),
        split=split,
        rank=next((one for one in labels if plain(one) in _RANK and _is_whole(one, rows)), None),
        run=next((one for one in labels if plain(one) in _RUN), None),
        name=name if value is not None else None,
        value=value,
        total_steps=None if total is None else _constant(total, rows),
        loss=loss,
        companions=companions,
        usual=usual,
    )


def _first(labels: Sequence[str], names: Collection[str]) -> str | None:
    return next((label for label in labels if plain(label) in names), None)


def _step(labels: Sequence[str], rows: Sequence[Row], wanted: Mapping[str, str]) -> str | None:
    named = [label for label, signal in wanted.items() if signal == "step" and label in labels]
    if named:
        return named[0]
    known = [label for label in labels if step_place(label) < 1000]
    best: tuple[bool, int, str] | None = None
    for label in known:
        steps = [as_step(row[label]) for row in rows if filled(row.get(label))]
        good = sum(one is not None for one in steps)
        if good == 0 or good < 0.5 * len(steps):
            continue
        found = (good < 0.8 * len(rows), step_place(label), label)
        best = found if best is None else min(best, found)
    if best is not None:
        return best[2]
    for label in labels[:3]:  # a column without a known name that counts strictly upwards
        words = set(_WORDS.findall(label.lower()))
        if len(rows) >= 5 and not words & _NO_STEP and _rises(label, rows):
            return label
    return None


def _rises(label: str, rows: Sequence[Row]) -> bool:
    steps = [as_step(row.get(label)) for row in rows]
    known = [one for one in steps if one is not None and one < 1 << 31]
    return len(known) == len(rows) and all(a < b for a, b in pairwise(known))


def _counts(label: str, rows: Sequence[Row]) -> bool:
    """Whether epochs are whole and few rows share one."""
    steps = [as_step(row[label]) for row in rows if filled(row.get(label))]
    known = [one for one in steps if one is not None]
    return bool(known) and len(known) == len(steps) and len(known) <= 4 * len(set(known))


def _in_epoch(step: str, epoch: str, split: str | None, rows: Sequence[Row]) -> bool:
    before: tuple[int, int] | None = None
    for row in rows:
        if split is not None and evaluates(str(row.get(split))):
            continue
        now = as_step(row.get(epoch)), as_step(row.get(step))
        if now[0] is None or now[1] is None:
            continue
        if before is not None and now[0] == before[0] + 1 and now[1] <= before[1]:
            return True
        before = now[0], now[1]
    return False


def _strings(label: str, rows: Iterable[Row]) -> list[str]:
    texts = (row.get(label) for row in rows)
    return [text for text in texts if isinstance(text, str) and text]


def _is_words(label: str, rows: Sequence[Row]) -> bool:
    texts = _strings(label, rows)
    return bool(texts) and all(number(text) is None for text in texts[:50])


def _is_split(label: str, rows: Sequence[Row]) -> bool:
    if plain(label) not in _SPLIT:
        return False
    texts = {text.lower() for text in _strings(label, rows)}
    known = [text for text in texts if evaluates(text) or text in _TRAIN_WORDS]
    return bool(known) and 2 * len(known) >= len(texts)


def _is_whole(label: str, rows: Sequence[Row]) -> bool:
    ranks = [as_step(row[label]) for row in rows if filled(row.get(label))]
    return bool(ranks) and all(one is not None and one < 1 << 20 for one in ranks)


def _constant(label: str, rows: Sequence[Row]) -> int | None:
    found = {as_step(row[label]) for row in rows if filled(row.get(label))}
    return found.pop() if len(found) == 1 else None


def _beside_loss(
    labels: Sequence[str], rows: Sequence[Row], step: str | None, split: str | None
) -> tuple[str | None, frozenset[str], frozenset[str]]:
    """The loss, and what shows that a row without one had a loss that was NaN."""
    losses = [(signal_of(one)[1], one) for one in labels if signal_of(one)[0] == "loss"]
    if not losses:
        return None, frozenset(), frozenset()
    loss = min(losses)[1]
    beside = [one for one in labels if signal_of(one)[0] in ("lr", "grad_norm")]
    companions: list[str] = []
    for label in beside:
        shown = [filled(row.get(loss)) for row in rows if filled(row.get(label))]
        if len(shown) >= MIN_COMPLETE and all(shown[:MIN_COMPLETE]):
            companions.append(label)
    usual = {
        label
        for row in rows
        if filled(row.get(loss)) and not (split and evaluates(str(row.get(split))))
        for label, value in row.items()
        if filled(value)
    }
    return loss, frozenset(companions), frozenset(usual)
