"""The one mechanism behind every text format: a pattern a record, pairs, and what words mean."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from foreshock.core.log import EventKind
from foreshock.core.log_builder import LogBuilder
from foreshock.core.reader import Reader, Sample, Source

_EXPONENT = r"(?:[eE][-+]?\d+)?"
NUMBER = (
    rf"[-+]?(?:\d[\d,_]*\.?\d*{_EXPONENT}|\.\d+{_EXPONENT}"
    r"|[nN][aA][nN]|[iI]nf(?:inity)?|INF)"
)
"""A number as logs print it: thousands separators, NaN in any case, infinities."""

_MAX_FOLDED = 12
_RANK = re.compile(
    r"^\s*(?:\[(?:default|[Rr]ank ?|RANK |local_rank |gpu|worker)?(\d{1,5})\]:?|(\d{1,5}):) "
)


def number(text: str) -> float | None:
    """The number that a text spells; None if it spells none.

    >>> number("1,048.5"), number("NAN"), number("2.4E-05"), number("n/a")
    (1048.5, nan, 2.4e-05, None)
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(text.replace(",", "").strip("%$ "))
    except ValueError:
        return None


def whole(text: str) -> int | None:
    """The whole number that a text spells, thousands separators or not; None if none.

    >>> whole("31,215"), whole("12.0"), whole("nan")
    (31215, 12, None)
    """
    value = number(text)
    if value is None or not abs(value) < 1 << 62 or value != int(value):
        return None
    return int(value)


class Says:
    """What it means when a line that is no record holds some words.

    Args:
        kind: what is said.
        pattern: regular expression; named groups are values that the words carry
            (`loss_scale`; `attempted_scale` for the scale before it was cut), `rank`, and
            `signal` stands for nothing but the name of one.
        hint: a part of every such line, tested before the pattern.
        signal: the signal it speaks of.
    """

    __slots__ = ("hint", "kind", "pattern", "signal")

    def __init__(self, kind: EventKind, pattern: str, *, hint: str, signal: str = "") -> None:
        self.kind = kind
        self.pattern = re.compile(pattern)
        self.hint = hint
        self.signal = signal


OVERFLOW = "loss_scale"
SHARED_EVENTS: tuple[Says, ...] = (
    Says(
        EventKind.OVERFLOW,
        rf"OVERFLOW! Rank \S+ Skipping step\. Attempted loss scale: (?P<attempted_scale>{NUMBER})"
        rf"(?:, reducing to (?P<loss_scale>{NUMBER}))?",
        hint="OVERFLOW!",
        signal="grad_norm",
    ),
    Says(
        EventKind.OVERFLOW,
        rf"radient overflow\.\s+Skipping step,.*reducing loss scale to (?P<loss_scale>{NUMBER})",
        hint="radient overflow",
        signal="grad_norm",
    ),
    Says(
        EventKind.OVERFLOW,
        rf"overflow detected, setting loss scale to: (?P<loss_scale>{NUMBER})",
        hint="overflow detected",
        signal="grad_norm",
    ),
    Says(EventKind.SCALE_FLOOR, r"(?i)minimum loss scale reached", hint="inimum loss scale"),
    Says(
        EventKind.SCALE_FLOOR,
        r"loss scale already at minimum",
        hint="already at minimum",
    ),
)
"""What every text format is searched for."""


class TextReader(Reader):
    """A format whose records are lines of text, described by a pattern or two.

    A concrete format is a handful of class attributes. What they cannot say, it says by
    overriding `record_of`.

    Attributes:
        specificity: what `recognises` gives if records are found (see `Reader`).
        hint: a part that every record has; lines without it are not searched.
        record: regular expression that finds a record in a line. Named groups are labels
            with their values; `step`, `total_steps`, `rank` and `rest` have their own
            meaning. Several may stand on one line.
        pairs: regular expression with two groups, label and value: every find in the
            record's line, from the record on (or in its group `rest`), is a value too.
        labels: what the format calls things, to the label under which they are kept; a label
            that maps to the empty string is left out.
        only: if given, pairs with other labels are left out.
        expected: labels that a record shows unless they are NaN.
        folds: regular expression of a line that continues the record before it (records
            wrapped by a terminal, or of several lines by design).
        events: what lines that are no records say, besides `SHARED_EVENTS`.
    """

    specificity: ClassVar[float] = 0.85
    hint: ClassVar[str] = ""
    record: ClassVar[str]
    pairs: ClassVar[str] = ""
    labels: ClassVar[Mapping[str, str]] = {}
    only: ClassVar[frozenset[str]] = frozenset()
    expected: ClassVar[tuple[str, ...]] = ()
    folds: ClassVar[str] = ""
    events: ClassVar[tuple[Says, ...]] = ()

    _record: ClassVar[re.Pattern[str]]
    _pairs: ClassVar[re.Pattern[str] | None]
    _folds: ClassVar[re.Pattern[str] | None]
    _groups: ClassVar[tuple[tuple[int, str], ...]]
    _all_events: ClassVar[tuple[Says, ...]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "record"):
            return
        cls._record = re.compile(cls.record)
        cls._pairs = re.compile(cls.pairs) if cls.pairs else None
        cls._folds = re.compile(cls.folds) if cls.folds else None
        own = ("step", "total_steps", "rank", "rest")
        cls._groups = tuple(
            (place, name) for name, place in cls._record.groupindex.items() if name not in own
        )
        cls._all_events = (*cls.events, *SHARED_EVENTS)

    def recognises(self, sample: Sample) -> float:
        if sample.is_dir:
            return 0.0
        found = 0
        for line in sample.lines:
            if self.hint in line and self._record.search(line):
                found += 1
                if found >= 3:
                    break
        return self.specificity * (1.0 if found >= 3 else 0.97) if found else 0.0

    def record_of(
        self, match: "re.Match[str]", line: str
    ) -> tuple[int | None, list[tuple[str, float]]] | None:
        """The step and the values of one record; None if it is none after all.

        Args:
            match: of `record`.
            line: the part of the line up to the next record on it, folded lines included.
        """
        groups = match.groupdict()
        step = whole(groups["step"]) if groups.get("step") else None
        pairs: list[tuple[str, float]] = []
        for place, label in self._groups:
            text = match.group(place)
            if text is not None and (value := number(text)) is not None:
                kept = self.labels.get(label, label)
                if kept:
                    pairs.append((kept, value))
        if self._pairs is not None:
            rest = groups.get("rest")
            found = self._pairs.findall(line if rest is None else rest)
            pairs += self.kept(found)
        return step, pairs

    def kept(self, found: Iterable[tuple[str, str]]) -> list[tuple[str, float]]:
        """Pairs of texts as pairs of labels and numbers, without what is left out."""
        labels, only = self.labels, self.only
        pairs: list[tuple[str, float]] = []
        for label, text in found:
            label = labels.get(label, label)  # noqa: PLW2901
            if not label or (only and label not in only):
                continue
            value = number(text)
            if value is not None:
                pairs.append((label, value))
        return pairs

    def complete(self, pairs: list[tuple[str, float]], log: LogBuilder) -> list[tuple[str, float]]:
        """A record with NaN for what it is expected to show and does not."""
        if self.expected:
            shown = {label for label, _ in pairs}
            for label in self.expected:
                if label not in shown:
                    pairs.append((label, float("nan")))
                    log.note(
                        f"a record without {label!r} is one whose {label} was NaN or not positive"
                    )
        return pairs

    def read(self, source: Source, log: LogBuilder) -> None:
        record = self._record
        total_group = "total_steps" in record.groupindex
        rank_group = "rank" in record.groupindex
        for number_, line, match in self._folded(source, log):
            if match is None:
                self.word(line, number_, log)
                continue
            rank = self._rank(match, line) if rank_group else self._rank(None, line)
            at: re.Match[str] | None = match
            while at is not None:
                following = record.search(line, at.end())
                part = line[at.start() : following.start() if following else len(line)]
                found = self.record_of(at, part)
                if found is not None and (found[1] or self.expected):
                    step, pairs = found
                    log.row(step, self.complete(pairs, log), line=number_, rank=rank)
                    if total_group and log.total_steps is None and at["total_steps"]:
                        log.total_steps = whole(at["total_steps"])
                at = following

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        """Take in a line that is no record."""
        for says in self._all_events:
            if says.hint in line and (match := says.pattern.search(line)):
                values = {name: number(text) for name, text in match.groupdict().items() if text}
                attempted = values.pop("attempted_scale", None)
                if attempted is not None and "loss_scale" in values:
                    log.row(None, [("loss_scale", attempted)], line=number_)
                log.event(
                    says.kind,
                    line=number_,
                    text=line,
                    signal=says.signal,
                    values=[(name, value) for name, value in values.items() if value is not None],
                )
                return

    def _folded(
        self, source: Source, log: LogBuilder
    ) -> Iterator[tuple[int, str, "re.Match[str] | None"]]:
        """The lines, each with the first record on it; lines that continue one joined to it."""
        hint, search = self.hint, self._record.search
        folds = self._folds
        held: tuple[int, str, re.Match[str]] | None = None
        parts: list[str] = []
        for number_, line in source.lines():
            log.num_lines = number_
            match = search(line) if hint in line else None
            if folds is None:
                yield number_, line, match
                continue
            if held is not None:
                if match is None and len(parts) < _MAX_FOLDED and folds.search(line):
                    parts.append(line.strip())
                    continue
                yield self._joined(held, parts)
                held = None
            if match is None:
                yield number_, line, None
            else:
                held, parts = (number_, line, match), []
        if held is not None:
            yield self._joined(held, parts)

    def _joined(
        self, held: tuple[int, str, "re.Match[str]"], parts: list[str]
    ) -> tuple[int, str, "re.Match[str] | None"]:
        if not parts:
            return held
        line = " ".join([held[1].rstrip(), *parts])
        return held[0], line, self._record.search(line)

    @staticmethod
    def _rank(match: "re.Match[str] | None", line: str) -> int | None:
        if match is not None and match["rank"]:
            return whole(match["rank"])
        if line[:1] in "[ 0123456789" and (found := _RANK.match(line)):
            return int(found[1] or found[2])
        return None
