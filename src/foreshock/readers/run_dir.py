"""Foreshock's own run directory; `docs/run-directory.md` gives its formats."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from foreshock.core.errors import JournalError
from foreshock.core.log import EventKind
from foreshock.core.log_builder import MAX_COLUMNS, LogBuilder
from foreshock.core.log_columns import as_step
from foreshock.core.names import GLOBAL, split_series
from foreshock.core.reader import Reader, Sample, Source
from foreshock.core.reading import from_json_number
from foreshock.core.records import ReadingBlock, decode_lines, decode_readings

_READINGS = re.compile(r"readings/attempt-(\d{5,15})\.bin\Z", re.ASCII)
_DECISIONS = "decisions.jsonl"
_MAX_VALUES = 30_000_000
"""Values of all modules together; beyond, only those of the whole run are read."""

Decision = Mapping[str, Any]


class RunDir(Reader):
    """`readings/attempt-00001.bin` (what was measured) and `decisions.jsonl` (what was done).

    Every attempt after the first is a restart, also where it goes back; skipped updates and a
    halt are events. `loss/global` is called `loss`; what a module measured keeps its scope.
    """

    name: ClassVar[str] = "run_dir"
    title: ClassVar[str] = "Foreshock run directory"

    def recognises(self, sample: Sample) -> float:
        if not sample.is_dir or "run.json" not in sample.children:
            return 0.0
        known = _DECISIONS in sample.children or any(map(_READINGS.match, sample.children))
        return 1.0 if known else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        names = source.children()
        decisions = _decisions(source, log) if _DECISIONS in names else []
        by_attempt: dict[int, list[Decision]] = {}
        for one in decisions:
            by_attempt.setdefault(as_step(one.get("attempt")) or 0, []).append(one)
        blocks: dict[int, ReadingBlock] = {}
        for name in names:
            if not (match := _READINGS.match(name)):
                continue
            try:
                block = decode_readings(source.child(name).document(), name)
            except JournalError as error:
                log.note(f"{name} was skipped: {error}")
                continue
            if block.torn_bytes:
                log.note(f"{name}: the last {block.torn_bytes} bytes are no whole record")
            blocks[int(match[1])] = block
        size = sum(block.values.size for block in blocks.values())
        if size > _MAX_VALUES:
            log.note("there is too much of single modules: only what is global was read")
        for place, attempt in enumerate(sorted({*blocks, *by_attempt} - {0})):
            said = by_attempt.get(attempt, [])
            if place:
                start = next((one for one in said if one.get("kind") == "attempt_started"), {})
                log.event(
                    EventKind.RESUMED,
                    text=f"attempt {attempt} goes on from step {start.get('step', '?')}",
                )
            _attempt(blocks.get(attempt), said, log, only_global=size > _MAX_VALUES)


def _decisions(source: Source, log: LogBuilder) -> list[dict[str, Any]]:
    try:
        lines = decode_lines(source.child(_DECISIONS).document(), _DECISIONS)
    except JournalError as error:
        log.note(f"the decisions were not read: {error}")
        return []
    if lines.torn_bytes:
        log.note(f"{_DECISIONS}: the last {lines.torn_bytes} bytes are no whole record (yet)")
    return lines.records


def _attempt(
    block: ReadingBlock | None, said: list[Decision], log: LogBuilder, *, only_global: bool
) -> None:
    """Give the steps of one attempt, and what happened at each, to the builder."""
    events = [one for one in said if one.get("kind") in ("skip", "halted", "run_halted")]
    events.sort(key=lambda one: as_step(one.get("step")) or 0)
    at = 0
    if block is not None:
        labels = _labels(block.series, only_global=only_global)
        places = [place for place, _ in labels]
        names = [name for _, name in labels]
        values = block.values[:, places].tolist()
        for step, row in zip(block.steps.tolist(), values, strict=True):
            while at < len(events) and (as_step(events[at].get("step")) or 0) < step:
                _event(events[at], log)
                at += 1
            log.row(step, zip(names, row, strict=True))
            log.num_lines += 1
    for one in events[at:]:
        _event(one, log)


def _labels(series: tuple[str, ...], *, only_global: bool) -> list[tuple[int, str]]:
    """Which series are given, the global ones first, and under which label."""
    whole: list[tuple[int, str]] = []
    scoped: list[tuple[int, str]] = []
    for place, name in enumerate(series):
        signal, scope = split_series(name)
        if scope == GLOBAL:
            whole.append((place, signal))
        elif not only_global:
            scoped.append((place, name))
    return [*whole, *scoped][: 2 * MAX_COLUMNS]


def _event(decision: Decision, log: LogBuilder) -> None:
    if decision["kind"] == "skip":
        log.event(
            EventKind.SKIPPED,
            text=f"step {decision.get('step')}: skipped, {str(decision.get('reason'))[:120]} "
            f"(gradient norm {_norm(decision.get('grad_norm'))})",
            signal="grad_norm",
        )
    else:
        text = str(decision.get("note") or decision["kind"])
        log.event(EventKind.STOPPED, text=text)


def _norm(value: object) -> str:
    try:
        return f"{from_json_number(value):.4g}"
    except ValueError:
        return "?"
