"""Foreshock's own run directory; `docs/run-directory.md` gives its formats."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ForeshockError, JournalError
from foreshock.core.log import EventKind
from foreshock.core.log_builder import MAX_COLUMNS, LogBuilder
from foreshock.core.log_columns import as_step
from foreshock.core.names import GLOBAL, split_series
from foreshock.core.reader import Reader, Sample, Source
from foreshock.core.reading import from_json_number, is_absent
from foreshock.core.records import ReadingBlock, decode_lines
from foreshock.core.segments import attempt_of
from foreshock.readings_files import AttemptReader

_DECISIONS = "decisions.jsonl"
_MAX_VALUES = 30_000_000
"""Values of all modules together; beyond, only those of the whole run are read."""

Decision = Mapping[str, Any]


class RunDir(Reader):
    """`readings/attempt-00001/` (what was measured) and `decisions.jsonl` (what was done).

    Every attempt after the first is a restart, also where it goes back; skipped updates and a
    halt are events. `loss/global` is called `loss`; what a module measured keeps its scope.
    """

    name: ClassVar[str] = "run_dir"
    title: ClassVar[str] = "Foreshock run directory"

    def recognises(self, sample: Sample) -> float:
        if not sample.is_dir or "run.json" not in sample.children:
            return 0.0
        known = _DECISIONS in sample.children or any(_attempts_of(sample.children))
        return 1.0 if known else 0.0

    def read(self, source: Source, log: LogBuilder) -> None:
        names = source.children()
        decisions = _decisions(source, log) if _DECISIONS in names else []
        by_attempt: dict[int, list[Decision]] = {}
        for one in decisions:
            by_attempt.setdefault(as_step(one.get("attempt")) or 0, []).append(one)
        readers = {
            attempt: AttemptReader(_Folder(source, folder), attempt)
            for attempt, folder in _attempts_of(names).items()
        }
        size = sum(_size(reader) for reader in readers.values())
        if only_global := size > _MAX_VALUES:
            log.note("there is too much of single modules: only what is global was read")
        blocks = {
            attempt: block
            for attempt, reader in readers.items()
            if (block := _block(reader, log, attempt, only_global=only_global)) is not None
        }
        for place, attempt in enumerate(sorted({*blocks, *by_attempt} - {0})):
            said = by_attempt.get(attempt, [])
            if place:
                start = next((one for one in said if one.get("kind") == "attempt_started"), {})
                log.event(
                    EventKind.RESUMED,
                    text=f"attempt {attempt} goes on from step {start.get('step', '?')}",
                )
            _attempt(blocks.get(attempt), said, log, only_global=only_global)


@dataclass(frozen=True)
class _Folder:
    """The folder of an attempt's readings, in a log's source."""

    source: Source
    shown: str

    def names(self) -> list[str]:
        begin = f"{self.shown}/"
        return [one.removeprefix(begin) for one in self.source.children() if one.startswith(begin)]

    def open(self, name: str) -> BinaryIO:
        child = self.source.child(f"{self.shown}/{name}")
        if name.endswith(".parquet"):
            return Path(child.local_path()).open("rb")
        return io.BytesIO(child.document())


def _attempts_of(names: Sequence[str]) -> dict[int, str]:
    """The attempts that have a folder of readings, and its path."""
    found: dict[int, str] = {}
    for name in names:
        top, _, rest = name.partition("/")
        folder, _, file = rest.partition("/")
        attempt = attempt_of(folder)
        if top == "readings" and file and attempt is not None:
            found[attempt] = f"{top}/{folder}"
    return found


def _size(reader: AttemptReader) -> int:
    try:
        num_rows, num_series = reader.size()
    except (ForeshockError, OSError):
        return 0  # why is told when it is read
    return num_rows * num_series


def _block(
    reader: AttemptReader, log: LogBuilder, attempt: int, *, only_global: bool
) -> ReadingBlock | None:
    """What an attempt measured, in the order in which it is given."""
    with reader:
        try:
            wanted = [name for _, name in _labels(reader.series(), only_global=only_global)]
            block = reader.read(wanted)
            if missing := reader.num_missing():
                log.note(f"readings of attempt {attempt}: {missing} segments are missing")
        except FileNotFoundError:
            return None
        except (ForeshockError, OSError) as error:
            log.note(f"readings/attempt-{attempt:05d} was skipped: {error}")
            return None
    if block.torn_bytes:
        log.note(f"attempt {attempt}: {block.torn_bytes} bytes of readings are no whole record")
    return block


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
        labels = [label for label, _ in _labels(block.series, only_global=only_global)]
        values = block.values.tolist()
        there: NDArray[np.bool_] = ~is_absent(block.values)
        whole = np.all(there, axis=1)
        for row, (step, numbers) in enumerate(zip(block.steps.tolist(), values, strict=True)):
            while at < len(events) and (as_step(events[at].get("step")) or 0) < step:
                _event(events[at], log)
                at += 1
            pairs = zip(labels, numbers, strict=True)
            if not whole[row]:
                pairs = compress(pairs, there[row].tolist())
            log.row(step, pairs)
            log.num_lines += 1
    for one in events[at:]:
        _event(one, log)


def _labels(series: Sequence[str], *, only_global: bool) -> list[tuple[str, str]]:
    """Label and name of the series that are given, the global ones first."""
    whole: list[tuple[str, str]] = []
    scoped: list[tuple[str, str]] = []
    for name in series:
        signal, scope = split_series(name)
        if scope == GLOBAL:
            whole.append((signal, name))
        elif not only_global:
            scoped.append((name, name))
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
