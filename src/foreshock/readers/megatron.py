"""Text logs of Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and their descendants."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import ClassVar

from foreshock.core.line_shape import Arrangement, Columns, Record, as_they_are
from foreshock.core.log import EventKind
from foreshock.core.log_builder import MAX_STEP, LogBuilder
from foreshock.core.text_reader import NUMBER, TextReader, number, whole

_LABEL = r"([A-Za-z][^|:]{0,60}?)"
_NO_MAIN_LOSS = ("scale", "balancing", "aux", "z_loss", "z loss", "mtp", "router")
_AFTER_LOSS = ("loss scale", "grad norm", "num zeros", "params norm", "actual seqlen", "number of")
_EVALUATED = re.compile(
    r"(?P<what>[\w-]{0,60}) (?:loss|results) at "
    r"(?:iteration (?P<step>\d{1,18})|the end of training)(?P<on>[^|]{0,60})\|(?P<rest>.*)"
)
_EVALUATED_PAIR = re.compile(
    rf"(?:\A|\|)\s{{0,9}}([A-Za-z][\w ]{{0,60}}?)\s{{0,9}}:\s{{0,9}}({NUMBER})"
)
_BAD_NORM = re.compile(rf"ad grad_norm detected \(grad_norm=({NUMBER})\)")


class Megatron(TextReader):
    """`iteration 310/ 9000 | ... | lm loss: 2.2E+00 | grad norm: 0.947 | ...`.

    Old versions print no colons, ranks may stand before a line, and terminals wrap it. The
    loss is printed only if it is positive: a record without one had a NaN, unless all of its
    iterations were skipped (GPT-NeoX and the newest Megatron then print a loss of 0) or the
    line was cut before the place of the loss.
    """

    name: ClassVar[str] = "megatron"
    title: ClassVar[str] = "Megatron-LM / Megatron-DeepSpeed / GPT-NeoX"
    specificity = 0.9
    hint = "iteration"
    record = r"(?<!, )\biteration:?\s+(?P<step>\d+)\s*/\s*(?P<total_steps>\d+)\s*\|"
    pairs = (
        rf"\|\s{{0,20}}{_LABEL}(?:\s{{0,9}}:\s{{0,20}}|\s{{1,20}})({NUMBER})"
        r"(?:(?=\s{0,20}(?:\||ms\b))|(?<=E[-+]\d\d)\s{0,20}\Z|(?<=nan)\s{0,20}\Z)"
    )
    drops = (
        r"(?i)\A(?!.*loss|number of).*(?:time|second|flop|sample|token|power|energy|memory"
        r"|seqlen|reserved)"
    )
    folds = r"\|"

    _bad_norm: tuple[float, int, str] | None = None
    _last_step: int | None = None
    _num_losses = 0
    _num_missing = 0

    def end(self, log: LogBuilder) -> None:
        if self._num_missing and not self._num_losses:
            log.note("no record shows a loss: all are taken for NaN, but perhaps it is not logged")

    def continues(self, line: str, before: Sequence[str]) -> bool:
        if "|" not in line or line.lstrip().startswith(("time (ms)", "[", "|", "validation")):
            return False
        if " at iteration " in line or "memory (MB)" in line:
            return False
        return not self.is_whole(before[-1])

    def is_whole(self, line: str) -> bool:
        return line.rstrip().endswith("|") and "nan iterations" in line

    def arranged(self, labels: Sequence[str], log: LogBuilder) -> Arrangement | None:
        kinds = [_kind_of(label) for label in labels]
        if "loss" not in kinds or "skipped" not in kinds:
            return None
        loss, skipped, step = kinds.index("loss"), kinds.index("skipped"), labels.index("")

        def check(numbers: Columns, start: int) -> int:
            place = start
            if self._bad_norm is None:
                for value, num_skipped in zip(
                    islice(numbers[loss], start, None),
                    islice(numbers[skipped], start, None),
                    strict=True,
                ):
                    if not value > 0 or num_skipped != 0:
                        break
                    place += 1
            if place > start:
                self._num_losses += place - start
                last = numbers[step][place - 1]
                self._last_step = int(last) if abs(last) < MAX_STEP else None
            return place

        return as_they_are(labels, check)

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        step, pairs, rank = record
        num_skipped = num_nan = 0.0
        is_shown = has_norm = False
        for label, value in pairs:
            kind = _KINDS.get(label) or _kind_of(label)
            if kind == "loss":
                is_shown = is_shown or value != 0
            elif kind == "skipped":
                num_skipped = value
            elif kind == "nan":
                num_nan = value
            elif kind == "norm":
                has_norm = True
        if is_shown:
            self._num_losses += 1
        else:
            pairs = self._without_loss(step, pairs, num_skipped, num_nan, log)
        bad, self._bad_norm = self._bad_norm, None
        if bad is not None and not has_norm:
            pairs.append(("grad norm", bad[0]))
        self._last_step = step
        log.row(step, pairs, line=number_, rank=rank)
        if num_skipped > 0:
            text = f"number of skipped iterations: {num_skipped:g}"
            log.event(EventKind.SKIPPED, line=number_, text=text)
        if bad is not None:
            log.event(EventKind.NONFINITE, line=bad[1], text=bad[2], signal="grad_norm")

    def _without_loss(
        self,
        step: int | None,
        pairs: list[tuple[str, float]],
        num_skipped: float,
        num_nan: float,
        log: LogBuilder,
    ) -> list[tuple[str, float]]:
        """A record that shows no loss, or a loss of 0: NaN if it had one, else as it is."""
        losses = [pair for pair in pairs if _kind_of(pair[0]) == "loss"]
        if losses and num_skipped == 0:
            self._num_losses += 1
            return pairs
        pairs = [pair for pair in pairs if pair not in losses]
        if self._lost(step, pairs, num_skipped, num_nan):
            self._num_missing += 1
            known = next((label for label in log.labels() if _kind_of(label) == "loss"), "lm loss")
            pairs.append((known, float("nan")))
            log.note(f"a record without {known!r} is one whose {known} was NaN")
        return pairs

    def _lost(
        self,
        step: int | None,
        pairs: list[tuple[str, float]],
        num_skipped: float,
        num_nan: float,
    ) -> bool:
        """Whether a record shows no loss because the loss was NaN."""
        if num_nan > 0:
            return True
        interval = 1
        if self._last_step is not None and step is not None:
            interval = max(1, step - self._last_step)
        if num_skipped >= interval:
            return False
        return any(label.startswith(_AFTER_LOSS) for label, _ in pairs)

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        if " at " in line and (found := _EVALUATED.search(line)):
            step = whole(found["step"]) if found["step"] else None
            log.row(step, _evaluated(found["rest"], found["what"], found["on"]), line=number_)
        elif "ad grad_norm" in line and (bad := _BAD_NORM.search(line)):
            self._bad_norm = (
                float("nan") if (norm := number(bad[1])) is None else norm,
                number_,
                line,
            )
        else:
            super().word(line, number_, log)


_KINDS = {
    "number of skipped iterations": "skipped",
    "number of nan iterations": "nan",
    "grad norm": "norm",
    "lm loss": "loss",
    "lm_loss": "loss",
    "loss scale": "other",
    "learning rate": "other",
    "global batch size": "other",
    "num zeros": "other",
    "params norm": "other",
}


def _kind_of(label: str) -> str:
    if label in _KINDS:
        return _KINDS[label]
    is_loss = "loss" in label and not any(word in label for word in _NO_MAIN_LOSS)
    return "loss" if is_loss else "other"


def _evaluated(rest: str, what: str, on: str) -> list[tuple[str, float]]:
    """What was evaluated, without perplexities: they are the exponential of the loss."""
    if what in ("", "validation", "test"):
        prefix = "test/" if "test" in (what, *on.split()) else "validation/"
    else:
        prefix = f"eval/{what} "
    pairs: list[tuple[str, float]] = []
    for label, text in _EVALUATED_PAIR.findall(rest):
        value = number(text)
        if "loss" in label and "ppl" not in label.lower() and value is not None:
            pairs.append((prefix + label.strip().removesuffix(" value"), value))
    return pairs
