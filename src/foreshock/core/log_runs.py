"""From rows in the order of a file to runs, attempts and strictly rising clocks."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foreshock.core.log import Floats, Ints, LogEvent, LoggedRun, LogSeries

_MAX_RESTARTS = 10_000
_CROWD = 64
"""Rows of one step, in the median: beyond that the column counts something else."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """The values of one label: `rows[T]` says in which row each stood."""

    signal: str
    label: str
    rows: Ints
    values: Floats


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a reader found. `steps[R]` is -1 where a row does not name one."""

    steps: Ints
    lines: Ints
    columns: Sequence[Column]
    events: Sequence[tuple[int, LogEvent]]
    resumed_rows: Sequence[int]
    new_run_rows: Sequence[int]
    total_steps: int | None


def split_runs(table: Table, note: Callable[[str], None]) -> list[LoggedRun]:
    """Sort a table into runs, and each run into attempts.

    A step that falls back to the first ones opens another run, a step that falls back less
    is a restart, and one that falls back for a single row is a late print.
    """
    num_rows = len(table.steps)
    if num_rows == 0:
        none = np.zeros(0, np.int64)
        only_words = _run(1, table, (0, 0), none, none, has_steps=False, note=note)
        return [only_words] if table.events else []
    leading = _leading_rows(table)
    steps, has_steps = _steps_of(table, leading, note)
    breaks = _breaks(steps, leading, table, has_steps, note)
    starts = [0, *[row for row, is_run in breaks if is_run], num_rows]
    runs: list[LoggedRun] = []
    for number, (low, high) in enumerate(pairwise(starts), 1):
        restarts = [row for row, is_run in breaks if not is_run and low < row < high]
        attempts = np.zeros(high - low, np.int64)
        for row in restarts:
            attempts[row - low :] += 1
        runs.append(_run(number, table, (low, high), steps, attempts, has_steps, note))
    if len(runs) > 1:
        note(f"the file holds {len(runs)} runs, one after the other")
    return runs


def _leading_rows(table: Table) -> Ints:
    """The rows whose steps tell where the run stands: those of the loss, or else of the
    column that names a step most often."""
    explicit = table.steps >= 0
    by_signal = {column.signal: column for column in table.columns}
    for signal in ("loss", "grad_norm"):
        if signal in by_signal:
            rows = by_signal[signal].rows
            rows = rows[explicit[rows]]
            if len(rows):
                return rows
    counted = [column.rows[explicit[column.rows]] for column in table.columns]
    best = max(counted, key=len, default=np.zeros(0, np.int64))
    return best if len(best) else np.flatnonzero(explicit)


def _steps_of(table: Table, leading: Ints, note: Callable[[str], None]) -> tuple[Ints, bool]:
    """Every row's step: its own, or that of the row before it; its number where none is."""
    numbered = np.arange(1, len(table.steps) + 1, dtype=np.int64)
    if len(leading) == 0:
        return _numbered_rows(table), False
    given = table.steps[leading]
    _, sizes = np.unique(given, return_counts=True)
    if len(given) > 1 and np.median(sizes) > _CROWD:
        note("the step column stands still for many rows: rows are numbered instead")
        return _numbered_rows(table), False
    steps = table.steps.copy()
    known = steps >= 0
    last = np.maximum.accumulate(np.where(known, numbered - 1, -1))
    filled = np.where(last >= 0, steps[np.maximum(last, 0)], steps[int(np.argmax(known))])
    filled = _across_epochs(filled, table, leading, note)
    return filled, True


def _numbered_rows(table: Table) -> Ints:
    """Rows numbered by those that carry the loss (or the longest column), from 1."""
    by_signal = {column.signal: column for column in table.columns}
    leader = by_signal.get("loss") or max(
        table.columns, key=lambda column: len(column.rows), default=None
    )
    numbers = np.zeros(len(table.steps), np.int64)
    if leader is not None:
        numbers[leader.rows] = 1
    return np.maximum(np.cumsum(numbers), 1)


def _across_epochs(steps: Ints, table: Table, leading: Ints, note: Callable[[str], None]) -> Ints:
    """Steps that begin anew in every epoch, counted through."""
    given = steps[leading]
    falls = np.flatnonzero(np.diff(given) < 0) + 1
    if len(falls) == 0 or len(falls) > len(given) // 2:
        return steps
    epochs = next((c for c in table.columns if c.signal == "epoch"), None)
    lengths = given[falls - 1]
    if int(given[falls].max()) > int(lengths.min()) // 2:
        return steps  # it goes back, not to the beginning
    regular = len(falls) >= 3 and int(lengths.max() - lengths.min()) <= 0.02 * int(lengths.max())
    if epochs is not None and not regular:
        epoch_at = np.full(len(steps), np.nan)
        epoch_at[epochs.rows] = epochs.values
        before, after = epoch_at[leading[falls - 1]], epoch_at[leading[falls]]
        with np.errstate(invalid="ignore"):
            regular = bool(np.all((after > before) & (after - before <= 1.0)))
            regular = regular and bool(np.all(np.floor(after) > np.floor(before)))
    if not regular:
        return steps
    note("steps begin anew in every epoch: they were counted through")
    offsets = np.zeros(len(steps), np.int64)
    for fall in falls.tolist():
        offsets[leading[fall] :] += given[fall - 1]
    return steps + offsets


def _breaks(
    steps: Ints,
    leading: Ints,
    table: Table,
    has_steps: bool,
    note: Callable[[str], None],
) -> list[tuple[int, bool]]:
    """Rows at which another attempt (False) or another run (True) begins, in order."""
    found: dict[int, bool] = {row: True for row in table.new_run_rows if 0 < row < len(steps)}
    for row in table.resumed_rows:
        if 0 < row < len(steps):
            found.setdefault(row, False)
    if not has_steps:
        return sorted(found.items())
    given = steps[leading]
    first, place = int(given[0]), 0
    highest = np.maximum.accumulate(given)
    falls = np.flatnonzero(given[1:] < highest[:-1]) + 1
    reach, num_late = -1, 0
    interval = max(1, int(np.median(np.abs(np.diff(given))))) if len(given) > 1 else 1
    for fall in falls.tolist():
        row, now = int(leading[fall]), int(given[fall])
        if any(place < known <= row for known in found if found[known]):
            first, reach = now, now  # a run that the reader announced
        top = int(given[max(0, np.searchsorted(leading, place)) : fall].max(initial=-1))
        if now >= max(top, reach) or now > int(given[fall - 1]):
            continue  # the same excursion: it has only not caught up yet
        if fall + 1 < len(given) and int(given[fall + 1]) > top:
            num_late += 1
            continue
        if len(found) >= _MAX_RESTARTS:
            note("the steps go back too often: later restarts are not told apart")
            break
        is_run = now <= first <= 2 * interval
        found[row] = is_run
        place, reach = row, now
        if is_run:
            first = now
    if num_late:
        note(f"{num_late} rows were printed late and are left out of order")
    return sorted(found.items())


def _run(  # noqa: PLR0917
    number: int,
    table: Table,
    bounds: tuple[int, int],
    steps: Ints,
    attempts: Ints,
    has_steps: bool,
    note: Callable[[str], None],
) -> LoggedRun:
    low, high = bounds
    series: dict[str, LogSeries] = {}
    for column in table.columns:
        start, end = np.searchsorted(column.rows, (low, high))
        rows = column.rows[start:end]
        if len(rows) == 0:
            continue
        explicit = table.steps[rows] >= 0
        own_steps, own_attempts = steps[rows], attempts[rows - low]
        kept = _kept(own_steps, own_attempts, column.values[start:end], explicit, note)
        series[column.signal] = LogSeries(
            signal=column.signal,
            label=column.label,
            steps=own_steps[kept],
            values=column.values[start:end][kept],
            clock=_clock(own_steps[kept], own_attempts[kept]),
            attempts=own_attempts[kept],
            lines=table.lines[rows][kept],
        )
    events = [
        dataclasses.replace(event, step=_event_step(steps, row, has_steps))
        for row, event in table.events
        if low <= row < high or (row == high == len(steps)) or (row >= high == len(steps))
    ]
    restarts = tuple(
        (int(steps[low + row - 1]), int(steps[low + row]))
        for row in (np.flatnonzero(np.diff(attempts)) + 1).tolist()
    )
    return LoggedRun(
        number=number,
        has_steps=has_steps,
        series=series,
        events=tuple(events),
        restarts=restarts,
        total_steps=table.total_steps,
    )


def _event_step(steps: Ints, row: int, has_steps: bool) -> int | None:
    if not has_steps or len(steps) == 0:
        return None
    return int(steps[min(max(row - 1, 0), len(steps) - 1)])


def _kept(
    steps: Ints,
    attempts: Ints,
    values: Floats,
    explicit: NDArray[np.bool_],
    note: Callable[[str], None],
) -> NDArray[np.bool_]:
    """Which values stay: of several of one step the first, or the first that is not finite;
    of a row that was printed late, none."""
    kept = np.ones(len(steps), np.bool_)
    if len(steps) < 2 or not explicit.any():
        return kept
    same = (steps[1:] == steps[:-1]) & (attempts[1:] == attempts[:-1])
    same &= explicit[1:] & explicit[:-1]
    if same.any():
        note("some steps are logged several times: the first value is kept, a NaN goes before it")
        group = np.concatenate(([0], np.cumsum(~same)))
        broken = ~np.isfinite(values)
        first_broken = np.zeros(len(values), np.bool_)
        where = np.flatnonzero(broken)
        first_broken[where[np.unique(group[where], return_index=True)[1]]] = True
        has_broken = np.isin(group, group[where])
        first = np.concatenate(([True], ~same))
        kept = np.where(has_broken, first_broken, first)
    for attempt in np.unique(attempts).tolist() if (np.diff(steps) < 0).any() else ():
        mine = np.flatnonzero((attempts == attempt) & explicit & kept)
        late = steps[mine] < np.maximum.accumulate(steps[mine]) if len(mine) else mine
        kept[mine[late]] = False
    return kept


def _clock(steps: Ints, attempts: Ints) -> Ints:
    """A strictly rising count: the step; what was undone is added after a restart."""
    if len(steps) < 2:
        return steps.copy()
    clock = steps.copy()
    for row in (np.flatnonzero(np.diff(attempts)) + 1).tolist():
        clock[row:] += max(0, int(clock[row - 1]) + 1 - int(clock[row]))
    if (np.diff(clock) > 0).all():
        return clock
    return np.arange(1, len(steps) + 1, dtype=np.int64)
