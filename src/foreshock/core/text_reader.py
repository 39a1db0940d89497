"""The one mechanism behind every text format: a pattern a record, pairs, and what words mean."""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar

from foreshock.core.line_shape import Arrangement, Record, Shapes, as_they_are
from foreshock.core.log_builder import LogBuilder
from foreshock.core.log_words import NUMBER, SHARED_EVENTS, Says, number, whole
from foreshock.core.reader import Reader, Sample, Source
from foreshock.core.text_reading import Held, Reading

__all__ = ["NUMBER", "SHARED_EVENTS", "Held", "Says", "TextReader", "number", "whole"]

_MAX_LABELS = 4096
_RANK = re.compile(
    r"^\s*(?:\[(?:default|[Rr]ank ?|RANK |local_rank |gpu|worker)?(\d{1,5})\]:?|(\d{1,5}):) "
)


class TextReader(Reader):
    """A format whose records are lines of text, described by a pattern or two.

    A concrete format is a handful of class attributes. What they cannot say, it says by
    overriding `record_of`. Each log is read by a copy: what a format remembers from line to
    line it sets up in `begin`, and gives away in `end`.

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
        drops: regular expression found in labels of pairs that are left out (times, rates).
        expected: labels that a record shows unless they are NaN.
        folds: regular expression of a line that continues the record before it (records
            wrapped by a terminal, or of several lines by design).
        joint: what stands between folded lines once they are joined.
        max_folded: lines that may continue a record.
        whole_line: whether pairs stand before the match of `record` too.
        regular: says of a reader that overrides `record_of` that labels there follow from the
            text alone, never from numbers, so that lines may be read by their shape.
        events: what lines that are no records say, besides `SHARED_EVENTS`.
        words_in_records: whether lines with records are searched for such words too.
    """

    specificity: ClassVar[float] = 0.85
    hint: ClassVar[str] = ""
    record: ClassVar[str]
    pairs: ClassVar[str] = ""
    labels: ClassVar[Mapping[str, str]] = {}
    only: ClassVar[frozenset[str]] = frozenset()
    drops: ClassVar[str] = ""
    expected: ClassVar[tuple[str, ...]] = ()
    folds: ClassVar[str] = ""
    joint: ClassVar[str] = " "
    max_folded: ClassVar[int] = 12
    whole_line: ClassVar[bool] = False
    regular: ClassVar[bool] = False
    events: ClassVar[tuple[Says, ...]] = ()
    words_in_records: ClassVar[bool] = False

    _record: ClassVar[re.Pattern[str]]
    _pairs: ClassVar[re.Pattern[str] | None]
    _folds: ClassVar[re.Pattern[str] | None]
    _groups: ClassVar[tuple[tuple[int, str], ...]]
    _all_events: ClassVar[tuple[Says, ...]]
    _is_regular: ClassVar[bool]
    _kept_labels: ClassVar[dict[str, str]]
    _completes: ClassVar[bool]
    _is_quick: ClassVar[bool]

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
        cls._kept_labels = {}
        by_pattern = cls.regular or cls.record_of is TextReader.record_of
        cls._is_regular = by_pattern and not cls.words_in_records
        cls._completes = bool(cls.expected) or cls.complete is not TextReader.complete
        cls._is_quick = cls.arranged is not TextReader.arranged or not (
            cls._completes or cls.settle is not TextReader.settle
        )

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
        pairs: list[tuple[str, float]] = []
        for found_label, text in found:
            label = self._kept_label(found_label)
            if label and (value := number(text)) is not None:
                pairs.append((label, value))
        return pairs

    def _kept_label(self, label: str) -> str:
        """Under which label a pair is kept; empty if it is left out."""
        known = self._kept_labels.get(label)
        if known is None:
            known = self.labels.get(label, label)
            if (self.only and known not in self.only) or (
                self.drops and re.search(self.drops, known)
            ):
                known = ""
            if len(self._kept_labels) < _MAX_LABELS:
                self._kept_labels[label] = known
        return known

    def complete(self, pairs: list[tuple[str, float]], log: LogBuilder) -> list[tuple[str, float]]:
        """A record with NaN for what it is expected to show and does not."""
        if self.expected:
            shown = {label for label, _ in pairs}
            for label in self.expected:
                if label not in shown:
                    pairs.append((label, float("nan")))
                    said = f"a record without {label!r} is one whose {label} was NaN"
                    log.note(f"{said} or not positive")
        return pairs

    def read(self, source: Source, log: LogBuilder) -> None:
        own = copy(self)  # what is remembered from line to line is of this log alone
        own.begin()
        hints = [one.hint for one in self._all_events]
        reading = Reading(own, log, hints if type(self).word is TextReader.word else None)
        try:
            for first, text in source.texts():
                reading.read(first, text)
        finally:
            reading.turn_to(None)
        own.end(log)

    def begin(self) -> None:
        """Set up what is remembered from line to line, before the first."""

    def end(self, log: LogBuilder) -> None:
        """Give what is still held back, or say what only the whole log tells."""

    def search(self, line: str) -> "re.Match[str] | None":
        """The first record on a line."""
        return self._record.search(line)

    def arranged(self, labels: Sequence[str], log: LogBuilder) -> Arrangement | None:
        """How many records of the same labels become rows, without `complete` and `settle`; None
        if each must go the long way. To be overridden with them, or each does.

        Args:
            labels: of the numbers, the step's empty, as they stand on the line.
            log: what the records belong to.
        """
        return as_they_are(labels)

    def is_whole(self, line: str) -> bool:
        """Whether no line can continue this record."""
        return self._folds is None

    def continues(self, line: str, before: Sequence[str]) -> bool:
        """Whether a line that is no record itself continues the one before it.

        Args:
            line: the line.
            before: the lines of the record so far that were folded, or its only one.
        """
        return self._folds is not None and self._folds.search(line) is not None

    def give(self, held: Held, log: LogBuilder, shapes: Shapes) -> None:
        """Give the records on a line to the log, with the lines that continue it."""
        line, match = held.line, held.match
        if held.known is not None and not held.parts:
            self.settle(held.known, held.number, log)
            return
        if held.parts:
            line = self.joint.join([line.rstrip(), *held.parts])
            match = self._record.search(line)
        first, record = match, self._record
        rank = self._rank(match if "rank" in record.groupindex else None, line)
        num_records = 0
        start = 0
        while match is not None:
            following = record.search(line, match.end())
            if not self.whole_line:
                start = match.start()
            part = line[start : following.start() if following else len(line)]
            start = match.end()
            found = self.record_of(match, part)
            num_records += 1
            if found is not None and (found[1] or self.expected):
                self.settle((*found, rank), held.number, log)
                if "total_steps" in record.groupindex and match["total_steps"]:
                    log.total_steps = log.total_steps or whole(match["total_steps"])
            match = following
        if self.words_in_records:
            self.word(line, held.number, log)
        if first is not None and num_records == 1 and not held.parts and self._is_regular:
            self._teach(shapes, first, line, rank, log)

    def settle(self, record: Record, number_: int, log: LogBuilder) -> None:
        """Give one record (step, labelled values, rank) to the log, completed."""
        step, pairs, rank = record
        if self._completes:
            pairs = self.complete(pairs, log)
        log.row(step, pairs, line=number_, rank=rank)

    def _teach(
        self,
        shapes: Shapes,
        match: "re.Match[str]",
        line: str,
        rank: int | None,
        log: LogBuilder,
    ) -> None:
        """Let `shapes` know the line, if reading it by its shape gives the same."""
        if shapes.is_full:
            return
        places: list[tuple[str, int, int]] = []
        for place, label in self._groups:
            kept = self.labels.get(label, label)
            if match.group(place) is not None and kept:
                places.append((kept, *match.span(place)))
        begin = 0 if self.whole_line else match.start()
        if self._pairs is not None:
            has_rest = match.groupdict().get("rest") is not None
            where = match.span("rest") if has_rest else (begin, None)
            for pair in self._pairs.finditer(line[: where[1]], where[0]):
                label = self._kept_label(pair[1])
                if label and number(pair[2]) is not None:
                    places.append((label, *pair.span(2)))
        has_step = "step" in match.re.groupindex and match["step"] is not None
        step = match.span("step") if has_step else None
        same = match.span("rank") if match.groupdict().get("rank") else (0, 0)
        named = _RANK.match(line) if same == (0, 0) else None
        fixed = named.end() if rank is not None and named else 0
        if rank is not None and not named and same == (0, 0):
            return
        found = self.record_of(match, line[begin:])
        if found is None or len(found[1]) != len(places):
            return
        values = [
            (label, low, high) for (label, _), (_, low, high) in zip(found[1], places, strict=True)
        ]
        shapes.learn(line, step, values, rank=rank, fixed=fixed, hint=self.hint, same=same)
        known = shapes.read(line)
        if known is not None and (
            (known[0], known[2]) != (found[0], rank)
            or sorted(map(repr, known[1])) != sorted(map(repr, found[1]))
        ):
            shapes.forget()
        elif known is not None and self._is_quick and self.is_whole(line):
            shapes.known[-1].admit(
                lambda labels: self.arranged(labels, log),
                lambda record, number_: self.settle(record, number_, log),
            )

    def word(self, line: str, number_: int, log: LogBuilder) -> None:
        """Take in a line that is no record."""
        for says in self._all_events:
            if says.hint in line and (match := says.pattern.search(line)):
                values = {name: number(text) for name, text in match.groupdict().items() if text}
                attempted = values.pop("attempted_scale", None)
                if (scaler := values.pop("scaler", None)) and "loss_scale" in values:
                    values[f"loss_scale_{scaler + 1:g}"] = values.pop("loss_scale")
                if attempted is not None:
                    log.row(None, [("loss_scale", attempted)], line=number_)
                log.event(
                    says.kind,
                    line=number_,
                    text=line,
                    signal=says.signal,
                    values=[(name, value) for name, value in values.items() if value is not None],
                )
                return

    @staticmethod
    def _rank(match: "re.Match[str] | None", line: str) -> int | None:
        if match is not None and match["rank"]:
            return whole(match["rank"])
        if line[:1] in "[ 0123456789" and (found := _RANK.match(line)):
            return int(found[1] or found[2])
        return None
