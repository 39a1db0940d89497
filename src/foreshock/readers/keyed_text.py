"""Any text whose lines name a step and a loss: hand-written loops, notes, unknown trainers."""

import re
from typing import ClassVar

from foreshock.core.epoch_steps import EpochSteps, count_of
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_names import COSTS, is_step, signal_of
from foreshock.core.reader import Sample, Source
from foreshock.core.spans import Span, Spans
from foreshock.core.text_reader import NUMBER, TextReader

_NO_RANGE = r"(?!\s{0,2}(?:→|->|–|~>|to\b|\.\.))"
_OPEN = r"['\"*]{0,3}[\s:=#\[(]{0,4}"
_STEP = re.compile(
    r"(?i)(?<![\w./-])(?:(?P<whole>global|train|training|optimizer|total)[ _-]?)?"
    r"(?P<word>steps?|iterations?|iters?|updates?|batch|epochs?)"
    rf"\b{_OPEN}(?P<at>\d[\d,]{{0,15}})(?![\w.]*\d)(?:\s?/\s?(?P<of>\d[\d,]{{0,15}}))?{_NO_RANGE}"
    r"(?:\]?[ ,]{0,2}\[\s{0,6}(?P<inner>\d{1,12})\s?/\s{0,6}(?P<inner_of>\d{1,12}))?"
)
_PAIR = re.compile(
    r"(?<![\w./-])((?:(?:grad|gradient|lm|ce|train|training|val|valid|validation|test|eval|total"
    r"|learning|loss|param|avg|average|mean|running)[ ])?[A-Za-z][\w./@-]{0,60})"
    rf"(['\"*]{{0,3}}\s{{0,3}}(?:=|: |:|\bis\b|)\s{{0,4}}\**)(?:tensor\()?['\"]?({NUMBER})"
    rf"(?![\w:%]|\.\d|,\d){_NO_RANGE}"
)
_TEST = re.compile(r"(?i)\b(?:val|valid|validation|validating|eval|evaluation|test|dev)\b")
_KNOWN = frozenset(
    ("loss", "grad_norm", "lr", "loss_scale", "eval_loss", "param_norm", "epoch", "num_skipped")
)
_PLACES = {"step": 0, "iteration": 1, "iter": 1, "update": 2, "batch": 3, "epoch": 9}
_AT, _EPOCH, _OF = _COUNTERS = ("\0at", "\0epoch", "\0of")
_MIN_RECORDS = 3
_MANY = 20
_MAX_TRIED = 400


class KeyedText(TextReader):
    """`Step [20/900], Loss: 2.31, LR: 1e-4` or `- iter 1300: loss 1.2, **grad norm 8.1**`.

    The fallback: a line is a record if it names a step (or iteration, update, batch, epoch)
    and a loss or gradient norm, each with its number behind it; a range is none. Labels that
    are not known need a colon or an equals sign.
    """

    name: ClassVar[str] = "keyed_text"
    title: ClassVar[str] = "text with steps and losses"
    specificity = 0.25
    record = _STEP.pattern
    drops = rf"{COSTS}|\.py\Z|(?i:\A(?:line|rank|pid|seed|node|size|world_size|batch_size|bs)\Z)"

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        lines = [line for line in sample.lines if line and not line.isspace()]
        candidates = [line for line in lines if _may_hold(line)]
        stride = len(candidates) // _MAX_TRIED + 1
        found = 0
        for line in candidates[::stride]:
            found += stride * (self._find(line) is not None)
            if found >= _MANY * stride:
                return self.specificity
        if found >= _MIN_RECORDS and found > 0.02 * len(lines):
            return self.specificity
        return 0.8 * self.specificity if found and 2 * found > len(lines) else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        steps = EpochSteps(may_run_on=True)
        spans = Spans(log, self._find)
        has_steps = False
        for number_, line in source.lines():
            log.num_lines = number_
            found = spans.read(line) if _may_hold(line) else None
            if found is None:
                if line:
                    self.word(line, number_, log)
                continue
            pairs = [pair for pair in found if pair[0] not in _COUNTERS]
            counted = {label: count_of(value) for label, value in found if label in _COUNTERS}
            step, epoch, of = (counted.get(label) for label in _COUNTERS)
            is_test = all(label[:4] == "val " for label, _ in pairs)
            if step is None and has_steps:
                # A word on the whole epoch, among the rows of its steps.
                pairs = [(x if is_test else f"epoch mean {x}", value) for x, value in pairs]
            elif step is None:
                step = epoch
            else:
                has_steps = has_steps or not is_test
                if epoch is None:
                    log.total_steps = log.total_steps or of
                else:
                    pairs.append(("epoch", float(epoch)))
                    step = steps.count(epoch, step, of)
            log.row(step, pairs, line=number_, rank=self._rank(None, line))

    def _find(self, line: str) -> list[Span] | None:
        """Where step, its end and epoch stand, and the values; None if it is no record."""
        counters = _counters_in(line)
        values = self._values_in(line) if counters else []
        if not any("loss" in x.lower() or signal_of(x)[0] == "grad_norm" for x, _, _ in values):
            return None
        return [*counters, *values]

    def _values_in(self, line: str) -> list[Span]:
        values: list[Span] = []
        is_test = False
        for found in _PAIR.finditer(line):
            label, joint, text = found.groups()
            signal = signal_of(label)[0]
            if signal not in _KNOWN and "loss" not in label.lower() and not _joins(joint):
                continue
            if is_step(label) or (signal == "epoch" and text.isdigit()):
                continue
            if not values:
                is_test = _TEST.search(line[: found.start()]) is not None
            if self._kept_label(label):
                values.append((label, *found.span(3)))
        if is_test:
            values = [(x if x[:4] == "val " else f"val {x}", a, b) for x, a, b in values]
        return values


def _counters_in(line: str) -> list[Span]:
    counters: dict[str, Span] = {}
    best = 8
    for found in _STEP.finditer(line):
        word = found["word"].lower().rstrip("s")
        place = -1 if (found["whole"] or "").lower() == "global" else _PLACES[word]
        if word == "epoch":
            counters[_EPOCH] = (_EPOCH, *found.span("at"))
            names = ("inner", "inner_of") if found["inner"] and best == 8 else ()
        else:
            names = ("at", "of") if place < best else ()
            best = min(best, place)
        for marker, name in zip((_AT, _OF), names, strict=False):
            counters.pop(marker, None)
            if found[name]:
                counters[marker] = (marker, *found.span(name))
    return list(counters.values())


def _may_hold(line: str) -> bool:
    return "oss" in line or "norm" in line or "OSS" in line


def _joins(joint: str) -> bool:
    """Whether an unknown label is joined to its number by a sign that says so."""
    return "=" in joint or ": " in joint
