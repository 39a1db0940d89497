"""Collects what a reader finds: rows of named values, and what the log says in words."""

import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from foreshock.core.log import EventKind, Ints, Log, LogEvent
from foreshock.core.log_names import signal_of
from foreshock.core.log_runs import Column, Table, split_runs
from foreshock.core.text import one_line

MAX_ROWS = 20_000_000
MAX_COLUMNS = 256
"""Columns kept; twice as many of those that are known signals."""
MAX_STEP = 1 << 48
"""Steps beyond it are none (time stamps, damage), so that sums of them stay in 64 bits."""
_MAX_EVENTS = 20_000
_MAX_NOTES = 40
_MAX_TEXT = 200
_RARE = 0.1
UNKNOWN_PLACE = 1000
_MAX_NOTE = 400
_LOSS = re.compile(r"(?i)(?:\A|.*[^a-z0-9])loss(?:es)?\Z")
_PART = re.compile(
    r"(?i)(?:\A|[^a-z])(?:entropy|reg|regulari[sz]ation|kl|aux|balance|balancing|z|best|min|val"
    r"|eval|valid|test|tot|epoch.mean)(?:[^a-z]|\Z)"
)


class LogFull(Exception):  # noqa: N818 - it says what is so, not what went wrong
    """The builder holds as much as it may: stop reading. Not an error of the log."""


class Growing:
    """One label's values so far."""

    __slots__ = ("add_row", "add_value", "rows", "values")

    def __init__(self) -> None:
        self.rows: array[int] = array("q")
        self.values: array[float] = array("d")
        self.add_row = self.rows.append
        self.add_value = self.values.append


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
        self._columns: dict[str, Growing] = {}
        self._events: list[tuple[int, LogEvent]] = []
        self._resumed_rows: list[int] = []
        self._new_run_rows: list[int] = []
        self._notes: dict[str, None] = {}
        self._first_rank: int | None = None
        self._hears_ranks = False
        self._num_events_left_out = 0
        self.total_steps: int | None = None
        self.num_lines = 0
        self.facts: dict[str, str] = {}

    @property
    def wanted(self) -> Mapping[str, str]:
        """Labels that the user named, to the signal that each measures."""
        return self._wanted

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
                if not self._hears_ranks:
                    self._hears_ranks = True
                    self.note("several ranks print: the first one seen speaks for all")
                pairs = [(label, value) for label, value in pairs if value - value != 0]
                if not pairs:
                    return
        place = len(self._steps)
        if place >= self._max_rows:
            self.note(f"only the first {self._max_rows:,} rows were read")
            raise LogFull
        self._steps.append(-1 if step is None or not 0 <= step < MAX_STEP else step)
        self._lines.append(line)
        columns = self._columns
        for label, value in pairs:
            column = columns.get(label)
            if column is None:
                if self._is_full(label):
                    continue
                column = columns[label] = Growing()
            try:
                column.add_value(value)
            except OverflowError:  # a whole number that no double holds
                column.add_value(math.inf if value > 0 else -math.inf)
            column.add_row(place)

    def columns_of(self, labels: Sequence[str]) -> "list[Growing] | None":
        """The columns of some labels, for `rows`; None if there is no room for them."""
        for label in labels:
            if label not in self._columns:
                if self._is_full(label):
                    return None
                self._columns[label] = Growing()
        return [self._columns[label] for label in labels]

    def rows(
        self,
        steps: Sequence[float | None],
        columns: "Sequence[Growing]",
        values: "Sequence[Sequence[float]]",
        lines: Sequence[int],
        *,
        rank: int | None = None,
    ) -> None:
        """What `row` does, for many rows of the same columns.

        Args:
            steps: `[R]`.
            columns: as `columns_of` gave them.
            values: of each column, `[R]` values.
            lines: `[R]`.
            rank: of the process that printed them all.

        Raises:
            LogFull: there is no room for all of them; those that fit were taken in.
        """
        if rank is not None and rank != self._first_rank:
            if self._first_rank is not None:
                labels = {id(column): label for label, column in self._columns.items()}
                own = [labels[id(column)] for column in columns]
                for step, line, *row in zip(steps, lines, *values, strict=True):
                    at = -1 if step is None or not 0 <= step < MAX_STEP else int(step)
                    self.row(at, zip(own, row, strict=True), line=line, rank=rank)
                return
            self._first_rank = rank
        place = len(self._steps)
        count = min(len(lines), self._max_rows - place)
        self._steps.extend(
            [-1 if s is None or not 0 <= s < MAX_STEP else int(s) for s in steps[:count]]
        )
        self._lines.extend(lines[:count])
        if count == 1:
            for column, own in zip(columns, values, strict=True):
                column.add_row(place)
                column.add_value(own[0])
            return
        for column, own in zip(columns, values, strict=True):
            column.rows.extend(range(place, place + count))
            column.values.extend(own[:count])
        if count < len(lines):
            self.row(None, [])  # says that it is full

    def _is_full(self, label: str) -> bool:
        """Whether there is no room for another column; signals that are known have more."""
        num_columns = len(self._columns)
        room = 2 * MAX_COLUMNS if self._signal(label)[1] < UNKNOWN_PLACE else MAX_COLUMNS
        if num_columns >= room:
            self.note(f"only the first {MAX_COLUMNS} columns were read")
        return num_columns >= room

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
        if kind is EventKind.RESUMED and self._resumed_rows[-1:] != [len(self._steps)]:
            self._resumed_rows.append(len(self._steps))
        if len(self._events) >= _MAX_EVENTS:
            self._num_events_left_out += 1
        else:
            said = one_line(text, _MAX_TEXT)
            event = LogEvent(kind=kind, step=None, line=line, signal=signal, text=said)
            self._events.append((len(self._steps), event))
        pairs = list(values)
        if pairs:
            self.row(None, pairs, line=line)

    def name_steps(self, places: Sequence[int], steps: Sequence[int]) -> None:
        """Name the steps of rows that did not.

        Args:
            places: of rows, by their order, that of the first being 0.
            steps: of each.
        """
        for place, step in zip(places, steps, strict=True):
            self._steps[place] = step

    def new_run(self) -> None:
        """What follows belongs to another run (a new event file, say)."""
        if self._new_run_rows[-1:] != [len(self._steps)]:
            self._new_run_rows.append(len(self._steps))

    def note(self, sentence: str) -> None:
        """Tell the user what was skipped, merged or guessed; the same sentence once only."""
        if len(self._notes) < _MAX_NOTES:
            self._notes.setdefault(one_line(sentence, _MAX_NOTE))

    def labels(self) -> list[str]:
        """The labels seen so far."""
        return list(self._columns)

    def finish(self, *, path: str, format: str, title: str) -> Log:  # noqa: A002
        """Make series of everything that was taken in."""
        if self._num_events_left_out:
            self.note(f"{self._num_events_left_out} more messages were left out")
        self._take_only_loss()
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

    def _take_only_loss(self) -> None:
        """Where no label is known to be the loss, the only one that ends in `loss` is, or the
        only one whose last part is a known one (`agent/train_loss`)."""
        signals = {label: self._signal(label)[0] for label in self._columns}
        if "loss" in signals.values() or "loss" in self._wanted.values():
            return
        named = [
            label
            for label in self._columns
            if _LOSS.match(label)
            and not _PART.search(label)
            and not signals[label].startswith("eval_")
        ]
        if len(named) > 1:
            named = [one for one in named if signal_of(re.split(r"[/.]", one)[-1])[0] == "loss"]
        if len(named) == 1:
            self._wanted = {**self._wanted, named[0]: "loss"}
            self.note(f"{named[0]!r} is taken for the loss: no other label is like one")

    def _chosen(self) -> list[Column]:
        """One column a signal: of several labels the preferred one that is logged about as
        often as the most frequent, the others under their own name."""
        most: dict[str, int] = {}
        for label, column in self._columns.items():
            signal, _ = self._signal(label)
            most[signal] = max(most.get(signal, 0), len(column.rows))
        best: dict[str, tuple[int, str]] = {}
        for label, column in self._columns.items():
            signal, place = self._signal(label)
            if place >= 0 and len(column.rows) < _RARE * most[signal]:
                place += UNKNOWN_PLACE  # a summary at the end, say
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
