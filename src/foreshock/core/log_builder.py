"""Collects what a reader finds: rows of named values, and what the log says in words."""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from foreshock.core.log import EventKind, Ints, Log, LogEvent
from foreshock.core.log_names import signal_of
from foreshock.core.log_runs import Column, Table, split_runs

MAX_ROWS = 20_000_000
MAX_COLUMNS = 256
_MAX_EVENTS = 20_000
_MAX_NOTES = 40
_MAX_TEXT = 200
_CONTROL = dict.fromkeys([*range(32), *range(127, 160)], " ")


class LogFull(Exception):  # noqa: N818 - it says what is so, not what went wrong
    """The builder holds as much as it may: stop reading. Not an error of the log."""


@dataclass(slots=True)
class _Growing:
    """One label's values so far."""

    rows: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))


class LogBuilder:
    """Takes in a log row by row; `finish` makes series of it.

    Args:
        labels: signal to the label that measures it, as the user says; goes before what
            labels mean by themselves.
        max_rows: rows kept; beyond, `row` raises LogFull and a note says so.

    >>> log = LogBuilder()
    >>> for step in (1, 2, 3):
    ...     log.row(step, [("lm loss", 2.0 / step), ("grad norm", 1.0)], line=step)
    >>> run = log.finish(path="x.log", format="megatron", title="Megatron-LM").runs[0]
    >>> run.series["loss"].steps.tolist(), run.series["loss"].values.tolist()[:2]
    ([1, 2, 3], [2.0, 1.0])
    """

    def __init__(self, *, labels: Mapping[str, str] | None = None, max_rows: int = MAX_ROWS):
        self._wanted = {label: signal for signal, label in (labels or {}).items()}
        self._max_rows = max_rows
        self._steps: array[int] = array("q")
        self._lines: array[int] = array("q")
        self._columns: dict[str, _Growing] = {}
        self._events: list[tuple[int, LogEvent]] = []
        self._resumed_rows: list[int] = []
        self._new_run_rows: list[int] = []
        self._notes: dict[str, None] = {}
        self._first_rank: int | None = None
        self._num_events_left_out = 0
        self.total_steps: int | None = None
        self.num_lines = 0
        self.facts: dict[str, str] = {}

    @property
    def num_rows(self) -> int:
        """Rows taken in so far."""
        return len(self._steps)

    def row(
        self,
        step: int | None,
        pairs: Iterable[tuple[str, float]],
        *,
        line: int = 0,
        rank: int | None = None,
    ) -> None:
        """Take in what was logged together.

        Args:
            step: optimizer step; None if the row does not say.
            pairs: label as the log has it, and value; NaN and Inf are legal.
            line: 1-based line of the file.
            rank: of the process that printed it. The first rank seen speaks for all; of
                the others only non-finite values are taken in.

        Raises:
            LogFull: there is no room for more rows.
        """
        if rank is not None and rank != self._first_rank:
            if self._first_rank is None:
                self._first_rank = rank
            else:
                self.note("several ranks print: the first one seen speaks for all")
                pairs = [(label, value) for label, value in pairs if value - value != 0]
                if not pairs:
                    return
        place = len(self._steps)
        if place >= self._max_rows:
            self.note(f"only the first {self._max_rows:,} rows were read")
            raise LogFull
        self._steps.append(-1 if step is None or not 0 <= step < 1 << 62 else step)
        self._lines.append(line)
        columns = self._columns
        for label, value in pairs:
            column = columns.get(label)
            if column is None:
                if len(columns) >= MAX_COLUMNS:
                    self.note(f"only the first {MAX_COLUMNS} columns were read")
                    continue
                column = columns[label] = _Growing()
            column.rows.append(place)
            column.values.append(value)

    def event(
        self,
        kind: EventKind,
        *,
        line: int = 0,
        text: str = "",
        signal: str = "",
        values: Iterable[tuple[str, float]] = (),
    ) -> None:
        """Take in what the log says in words, with values that the words carry."""
        if kind is EventKind.RESUMED:
            self._resumed_rows.append(len(self._steps))
        if len(self._events) >= _MAX_EVENTS:
            self._num_events_left_out += 1
        else:
            said = " ".join(text[:_MAX_TEXT].translate(_CONTROL).split())
            event = LogEvent(kind=kind, step=None, line=line, signal=signal, text=said)
            self._events.append((len(self._steps), event))
        pairs = list(values)
        if pairs:
            self.row(None, pairs, line=line)

    def new_run(self) -> None:
        """What follows belongs to another run (a new event file, say)."""
        self._new_run_rows.append(len(self._steps))

    def note(self, sentence: str) -> None:
        """Tell the user what was skipped, merged or guessed; the same sentence once only."""
        if len(self._notes) < _MAX_NOTES:
            self._notes.setdefault(" ".join(sentence[:400].translate(_CONTROL).split()))

    def labels(self) -> list[str]:
        """The labels seen so far."""
        return list(self._columns)

    def finish(self, *, path: str, format: str, title: str) -> Log:  # noqa: A002
        """Make series of everything that was taken in."""
        if self._num_events_left_out:
            self.note(f"{self._num_events_left_out} more messages were left out")
        table = Table(
            steps=_ints(self._steps),
            lines=_ints(self._lines),
            columns=self._chosen(),
            events=self._events,
            resumed_rows=self._resumed_rows,
            new_run_rows=self._new_run_rows,
            total_steps=self.total_steps,
        )
        runs = split_runs(table, self.note)
        return Log(
            path=path,
            format=format,
            title=title,
            runs=tuple(runs),
            notes=tuple(self._notes),
            num_lines=self.num_lines,
            facts=dict(self.facts),
        )

    def _chosen(self) -> list[Column]:
        """One column a signal: of several labels the preferred one, the others under their own
        name."""
        best: dict[str, tuple[int, str]] = {}
        for label in self._columns:
            signal, place = self._signal(label)
            if signal not in best or place < best[signal][0]:
                best[signal] = (place, label)
        chosen: list[Column] = []
        taken = set(best)
        for label, column in self._columns.items():
            signal, _ = self._signal(label)
            if best[signal][1] != label:
                signal = _own_name(label, taken)
                taken.add(signal)
            values = np.frombuffer(column.values, dtype=np.float64) if column.values else _NONE
            chosen.append(
                Column(signal=signal, label=label, rows=_ints(column.rows), values=values)
            )
        return chosen

    def _signal(self, label: str) -> tuple[str, int]:
        if label in self._wanted:
            return self._wanted[label], -1
        signal, place = signal_of(label)
        if signal in self._wanted.values():
            return f"other_{signal}", place
        return signal, place


_NONE = np.zeros(0)


def _ints(values: "array[int]") -> Ints:
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, np.int64)


def _own_name(label: str, taken: set[str]) -> str:
    """A name for a label whose signal another label measures."""
    name = "_".join("".join(c if c.isalnum() else " " for c in label.lower()).split()) or "unnamed"
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
