"""A training log, whatever wrote it: its runs, their series, and what it says in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class EventKind(StrEnum):
    """What a line that is no record can say."""

    OVERFLOW = "overflow"
    """A step was skipped because the scaled gradient overflowed; the loss scale falls."""
    SKIPPED = "skipped"
    """An update was not made, for another reason."""
    NONFINITE = "nonfinite"
    """The program itself says that a value is NaN or infinite."""
    SCALE_FLOOR = "scale_floor"
    """The loss scale reached its minimum, and the program stops."""
    STOPPED = "stopped"
    """The program ended in an error."""
    RESUMED = "resumed"
    """The program says that it goes on from a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class LogEvent:
    """Something that a log says in words.

    Attributes:
        step: step of the record before it (of the one after it where none is before);
            None where the log has no steps.
        line: 1-based line of the file, 0 where it has no lines.
        signal: the signal that it speaks of, if any.
        text: the line, cleaned of control characters and cut.
    """

    kind: EventKind
    step: int | None
    line: int
    signal: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class LogSeries:
    """One signal of one run, in the order of the file.

    Attributes:
        signal: canonical name where it is known (`loss`, `grad_norm`, `eval_loss`, …), else
            what the log calls it, in lower_snake_case.
        label: what the log calls it.
        steps: `[T]` step of each value; may repeat or go back where a run was restarted.
        values: `[T]`; NaN and Inf are legal.
        clock: `[T]` rises strictly: the step, where steps only rise; after a restart the
            step plus what was undone; the number of the value, where a log has no steps.
        attempts: `[T]` 0 before the first restart, and one more after each.
        lines: `[T]` 1-based line of the file, 0 where it has no lines.
    """

    signal: str
    label: str
    steps: Ints
    values: Floats
    clock: Ints
    attempts: Ints
    lines: Ints

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """One run of a log: a file may hold several, one after the other.

    Attributes:
        number: 1-based place in the file.
        has_steps: whether the log names steps; if not, steps are the numbers of the rows.
        series: by signal.
        events: in the order of the file.
        restarts: (last step before, first step after) of each time that it went on from an
            earlier step, or said that it had been resumed.
        total_steps: how long it was meant to be, if the log says so.
    """

    number: int
    has_steps: bool
    series: Mapping[str, LogSeries]
    events: tuple[LogEvent, ...] = ()
    restarts: tuple[tuple[int, int], ...] = ()
    total_steps: int | None = None

    @property
    def num_values(self) -> int:
        """Values of all series."""
        return sum(len(one) for one in self.series.values())


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log that was read.

    Attributes:
        path: as the user gave it.
        format: name of the reader.
        title: what people call the format.
        runs: at least one where anything was found.
        notes: what was skipped, merged or guessed, one sentence each.
        num_lines: lines or records seen.
    """

    path: str
    format: str
    title: str
    runs: tuple[LoggedRun, ...]
    notes: tuple[str, ...] = ()
    num_lines: int = 0
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the log says of its run besides: framework version, precision, …"""
