"""Lines that name a step and losses in words: which number is which."""

import re
from collections.abc import Callable

from foreshock.core.log_names import is_step, signal_of
from foreshock.core.log_words import NUMBER
from foreshock.core.spans import Span

_NO_RANGE = r"(?!\s{0,2}(?:→|->|–|~>|to\b|\.\.))"
_OPEN = r"['\"*]{0,3}[\s:=#\[(\uff1a]{0,4}"
_STEP = re.compile(
    r"(?i)(?<![\w./-])(?:(?P<whole>global|train|training|optimizer|total)[ _-]?)?"
    r"(?P<word>steps?|iterations?|iters?|updates?|batch(?:_idx?)?|epochs?|epo?|episodes?"
    r"|\u8bad\u7ec3\u6b21\u6570|\u8fed\u4ee3\u6b21\u6570"
    r"|train(?:ing)?(?=: ?(?:\[\d{1,6}/\d{1,6}\]|\d{1,6}) ?\[ {0,6}\d{1,9}/))"
    rf"\b{_OPEN}(?P<at>\d[\d,]{{0,15}})(?![\w.]*\d)(?:\s?/\s?(?P<of>\d[\d,]{{0,15}}))?{_NO_RANGE}"
    r"(?:\]?[ ,]{0,2}\[\s{0,6}(?P<inner>\d{1,12})(?:\s?/\s{0,6}(?P<inner_of>\d{1,12})|\]))?"
)
STEP_PATTERN = _STEP.pattern
_PAIR = re.compile(
    r"(?<![\w./-])((?:(?:grad|gradient|lm|ce|train|training|val|valid|validation|test|eval|total"
    r"|learning|loss|param|avg|average|mean|running)[ ]"
    r"|(?:(?i:train|training|val|valid|validation|test|eval)[ ])?"
    r"[A-Za-z][\w/-]{0,30}[ ](?=(?i:loss)\b))?"
    r"[A-Za-z][\w./@-]{0,60})"
    rf"(['\"*]{{0,3}}\s{{0,3}}(?:=|: |:|\uff1a|(?:\bso far )?\bis\b|)\s{{0,4}}\**)"
    rf"(?:tensor\()?['\"]?({NUMBER})"
    rf"(?![\w%]|:(?!\s*\Z)|\.\d|,\d){_NO_RANGE}"
)
_TEST = re.compile(r"(?i)\b(?:val|valid|validation|validating|eval|evaluation|test|dev)\b")
_NO_NAME = frozenset((
    "a", "an", "and", "the", "this", "that", "is", "was", "with", "of", "at", "in", "for", "to",
    "its", "our", "then", "now", "current", "done", "info", "debug", "log", "epoch", "step",
    "iter", "iteration",
))  # fmt: skip
"""Words that stand before a loss without saying which one it is."""

_KNOWN = frozenset(
    ("loss", "grad_norm", "lr", "loss_scale", "eval_loss", "param_norm", "epoch", "num_skipped")
)
_PLACES = {
    "step": 0, "iteration": 1, "iter": 1, "update": 2, "batch": 3, "epoch": 9,
    "\u8bad\u7ec3\u6b21\u6570": 1, "\u8fed\u4ee3\u6b21\u6570": 1,
}  # fmt: skip
"""How fine a counter is; the last two are Chinese for a number of iterations."""

_EPOCHS = ("epoch", "ep", "epo", "episode", "train", "training")
AT, EPOCH, OF = COUNTERS = ("\0at", "\0epoch", "\0of")
"""Labels of the numbers that say where a line stands: step, epoch, end of the steps."""


def counters_in(line: str) -> list[Span]:
    """The step, epoch and end that a line names, the finest ones.

    >>> [label[1:] for label, _, _ in counters_in("Epoch [2/9], Step [40/600], Loss: 2.5")]
    ['epoch', 'at', 'of']
    """
    counters: dict[str, Span] = {}
    best = 8
    for found in _STEP.finditer(line):
        word = found["word"].lower().rstrip("s").partition("_")[0]
        word = "epoch" if word in _EPOCHS else word
        place = -1 if (found["whole"] or "").lower() == "global" else _PLACES[word]
        if word == "epoch":
            counters[EPOCH] = (EPOCH, *found.span("at"))
            names = ("inner", "inner_of") if found["inner"] and best == 8 else ()
        else:
            names = ("at", "of") if place < best else ()
            best = min(best, place)
        for marker, name in zip((AT, OF), names, strict=False):
            counters.pop(marker, None)
            if found[name]:
                counters[marker] = (marker, *found.span(name))
    return list(counters.values())


def values_in(line: str, label_of: Callable[[str], str]) -> list[Span]:
    """The values that a line names; of an evaluation with `val ` before their label.

    Args:
        line: the line.
        label_of: gives what a label is kept as; empty if it is left out.
    """
    values: list[Span] = []
    is_test = False
    for found in _PAIR.finditer(line):
        label, joint, text = found.groups()
        label = _named(label)
        signal = signal_of(label)[0]
        if signal not in _KNOWN and "loss" not in label.lower() and not _joins(joint):
            continue
        is_counter = signal == "epoch" or label.lower() in _EPOCHS
        if is_step(label) or (is_counter and text.isdigit()):
            continue
        if not values:
            is_test = _TEST.search(line[: found.start()]) is not None
        if label_of(label):
            values.append((label, *found.span(3)))
    if is_test:
        values = [(x if x[:4] == "val " else f"val {x}", a, b) for x, a, b in values]
    return values


def is_loss(label: str) -> bool:
    """Whether a label is of a loss or a gradient norm.

    >>> is_loss("train Loss"), is_loss("gnorm"), is_loss("acc")
    (True, True, False)
    """
    return "loss" in label.lower() or signal_of(label)[0] == "grad_norm"


def may_hold(line: str) -> bool:
    """Whether a line may name a loss or a norm."""
    return "oss" in line or "norm" in line or "OSS" in line


def _named(label: str) -> str:
    """A label without a word before `loss` that names nothing."""
    before, _, last = label.rpartition(" ")
    return last if before.lower() in _NO_NAME else label


def _joins(joint: str) -> bool:
    """Whether an unknown label is joined to its number by a sign that says so."""
    return "=" in joint or ": " in joint or "\uff1a" in joint
