"""From rows in the order of a file to runs, attempts and strictly rising clocks."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foreshock.core.log import EventKind, Floats, Ints, LogEvent, LoggedRun, LogSeries
from foreshock.core.log_steps import Leader, fallen_rows, interval_of, leader_of

_MAX_RESTARTS = 10_000
_MAX_RUNS = 256
_ENDS = (EventKind.STOPPED, EventKind.SCALE_FLOOR)

Bools = NDArray[np.bool_]


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


@dataclass(frozen=True, kw_only=True)
class _Span:
    """The rows of one run, with their attempts, and how far each attempt's clock is ahead."""

    low: int
    high: int
    attempts: Ints
    ahead: Ints


def split_runs(table: Table, note: Callable[[str], None]) -> list[LoggedRun]:
    """Sort a table into runs, and each run into attempts.

    A step that falls back to the first ones opens another run, a step that falls back less
    is a restart, and a row or a few that fall back before the steps go on were printed late.
    """
    num_rows = len(table.steps)
    if num_rows == 0:
        none = np.zeros(0, np.int64)
        leader = Leader(rows=none, steps=none, explicit=False)
        span = _Span(low=0, high=0, attempts=none, ahead=none)
        only_words = _run(1, table, span, leader, _by_run(table, [0], leader), note)
        return [only_words] if table.events else []
    announced = any(0 < row < len(table.steps) for row in table.new_run_rows)
    leader = leader_of(table.steps, table.columns, note, announced=announced)
    breaks = _breaks(leader, table, note)
    leader = _begun_anew(leader, table.steps, [row for row, _ in breaks])
    starts = [0, *(row for row, is_run in breaks if is_run)]
    marks = np.zeros(num_rows, np.int64)
    marks[[row for row, is_run in breaks if not is_run]] = 1
    marks = np.cumsum(marks)
    events = _by_run(table, starts, leader)
    runs = [
        _run(number, table, _span(low, high, marks, leader), leader, events, note)
        for number, (low, high) in enumerate(pairwise([*starts, num_rows]), 1)
    ]
    if len(runs) > 1:
        note(f"the file holds {len(runs)} runs, one after the other")
    return runs


def _breaks(leader: Leader, table: Table, note: Callable[[str], None]) -> list[tuple[int, bool]]:
    """Rows at which another attempt (False) or another run (True) begins, in order."""
    num_rows = len(table.steps)
    found: dict[int, bool] = {}
    resumed = np.array([row for row in table.resumed_rows if 0 < row < num_rows], np.int64)
    places = np.searchsorted(leader.rows, resumed)
    for row, place in zip(*(one.tolist() for one in _firsts(resumed, places)), strict=True):
        if place > 0:  # else the log begins with it
            found[row] = False
    found |= {row: True for row in table.new_run_rows if 0 < row < num_rows}
    if leader.explicit:
        _add_falls(found, leader, note)
    limits = {True: _MAX_RUNS - 1, False: _MAX_RESTARTS}
    kept: list[tuple[int, bool]] = []
    for row, is_run in sorted(found.items()):
        if limits[is_run]:
            limits[is_run] -= 1
            kept.append((row, is_run))
        else:
            note("the steps go back too often: later restarts are not told apart")
    return kept


def _begun_anew(leader: Leader, given: Ints, breaks: Sequence[int]) -> Leader:
    """With the step of the first record behind a break for the rows in between that name none:
    they do not belong to the step at which the run before has ended."""
    if not leader.explicit:
        return leader
    steps = leader.steps
    for row, following in pairwise([*breaks, len(given)]):
        place = int(np.searchsorted(leader.rows, row))
        end = int(leader.rows[place]) if place < len(leader.rows) else following
        if row < end < following:
            steps = leader.steps.copy() if steps is leader.steps else steps
            steps[row:end][given[row:end] < 0] = steps[end]
    return leader if steps is leader.steps else dataclasses.replace(leader, steps=steps)


def _firsts(rows: Ints, places: Ints) -> tuple[Ints, Ints]:
    """Of the rows that stand before the same place, the first."""
    _, chosen = np.unique(places, return_index=True)
    return rows[chosen], places[chosen]


def _add_falls(found: dict[int, bool], leader: Leader, note: Callable[[str], None]) -> None:
    given, rows = leader.given, leader.rows
    announced = np.array(sorted(found), np.int64)
    falls, late = fallen_rows(given)
    where = np.searchsorted(announced, rows[falls - 1], side="right")
    # What a program says just before its step falls back speaks of this fall.
    said = where < np.searchsorted(announced, rows[falls], side="right")
    if num_late := int((late & ~said).sum()):
        note(f"{num_late} rows were printed late and were put in order")
    falls, where, said = (one[~late] for one in (falls, where, said))
    interval = interval_of(given)
    first = int(given[0])
    starts = {int(np.searchsorted(rows, row)) for row, is_run in found.items() if is_run}
    firsts = sorted(starts)
    for fall, mark, is_said in zip(falls.tolist(), where.tolist(), said.tolist(), strict=True):
        if len(found) >= _MAX_RESTARTS + _MAX_RUNS:
            break
        while firsts and firsts[0] <= fall:
            first = int(given[firsts.pop(0)])
        now = int(given[fall])
        row = int(announced[mark]) if is_said else int(rows[fall])
        if found.get(row):
            continue
        found[row] = now <= min(max(first, 1), 2 * interval)
        if found[row]:
            first = now


def _span(low: int, high: int, marks: Ints, leader: Leader) -> _Span:
    """The attempts of a run; the clock of each is ahead of its steps by what was undone."""
    attempts = marks[low:high] - marks[low]
    num_attempts = int(attempts[-1]) + 1
    start, end = np.searchsorted(leader.rows, (low, high))
    steps = leader.given[start:end]
    bounds = np.searchsorted(attempts[leader.rows[start:end] - low], np.arange(num_attempts + 1))
    ahead = np.zeros(num_attempts, np.int64)
    top, offset = -1, 0
    for attempt, (one, two) in enumerate(pairwise(bounds.tolist())):
        if one < two:
            offset = max(offset, top + 1 - int(steps[one:two].min()))
            top = max(top, int(steps[one:two].max()) + offset)
        ahead[attempt] = offset
    return _Span(low=low, high=high, attempts=attempts, ahead=ahead)


def _run(  # noqa: PLR0917
    number: int,
    table: Table,
    span: _Span,
    leader: Leader,
    events: Sequence[Sequence[LogEvent]],
    note: Callable[[str], None],
) -> LoggedRun:
    series: dict[str, LogSeries] = {}
    for column in table.columns:
        start, end = np.searchsorted(column.rows, (span.low, span.high))
        if start < end:
            part = dataclasses.replace(
                column, rows=column.rows[start:end], values=column.values[start:end]
            )
            series[column.signal] = _series(part, table, span, leader, note)
    where = np.searchsorted(leader.rows, span.low + np.flatnonzero(np.diff(span.attempts)) + 1)
    restarts = tuple(
        (int(leader.given[place - 1]), int(leader.given[place]))
        for place in where.tolist()
        if place < len(leader.rows)
        and leader.rows[place] < span.high
        and leader.rows[place - 1] >= span.low
    )
    return LoggedRun(
        number=number,
        has_steps=leader.explicit,
        series=series,
        events=tuple(events[number - 1]),
        restarts=restarts,
        total_steps=table.total_steps,
    )


def _series(
    column: Column, table: Table, span: _Span, leader: Leader, note: Callable[[str], None]
) -> LogSeries:
    rows, values = column.rows, column.values
    steps, lines = _take(leader.steps, rows), _take(table.lines, rows)
    attempts = _take(span.attempts, rows - span.low)
    explicit = _take(table.steps, rows) >= 0 if leader.explicit else np.zeros(len(rows), np.bool_)
    back = (np.diff(steps) < 0) & (np.diff(attempts) == 0)
    if back.any():
        falls, late = fallen_rows(steps)
        if (~late & back[falls - 1]).sum() > max(3, len(rows) // 50):
            note(f"the steps of {column.label!r} are not those of the run: it has the run's")
            steps, explicit = leader.at(rows), np.zeros(len(rows), np.bool_)
        order = np.lexsort((steps, attempts))
        steps, lines, attempts = steps[order], lines[order], attempts[order]
        values, explicit = values[order], explicit[order]
    kept = _kept(steps, attempts, values, explicit, note)
    if kept is not None:
        steps, lines, attempts = steps[kept], lines[kept], attempts[kept]
        values = values[kept]
    return LogSeries(
        signal=column.signal,
        label=column.label,
        steps=steps,
        values=values,
        clock=_clock(steps, attempts, span.ahead),
        attempts=attempts,
        lines=lines,
    )


def _take(array: Ints, rows: Ints) -> Ints:
    """`array[rows]` for rising rows; a view where they follow each other, for 20 million rows."""
    if int(rows[-1]) - int(rows[0]) + 1 == len(rows) and bool((rows[1:] > rows[:-1]).all()):
        return array[int(rows[0]) : int(rows[-1]) + 1]
    return array[rows]


def _kept(
    steps: Ints, attempts: Ints, values: Floats, explicit: Bools, note: Callable[[str], None]
) -> Bools | None:
    """Which values stay, None if all: of several of one step the first, or the first that is
    not finite."""
    same = (steps[1:] == steps[:-1]) & (attempts[1:] == attempts[:-1])
    same &= explicit[1:] & explicit[:-1]
    if not same.any():
        return None
    one, two = values[1:][same], values[:-1][same]
    if ((one != two) & ~(np.isnan(one) & np.isnan(two))).any():
        note("some steps are logged several times: the first value is kept, a NaN goes before it")
    first = np.concatenate(([True], ~same))
    group = np.cumsum(first) - 1
    broken = np.flatnonzero(~np.isfinite(values))
    groups, places = np.unique(group[broken], return_index=True)
    kept = np.flatnonzero(first)
    kept[groups] = broken[places]
    chosen = np.zeros(len(values), np.bool_)
    chosen[kept] = True
    return chosen


def _clock(steps: Ints, attempts: Ints, ahead: Ints) -> Ints:
    """A strictly rising count: the step, and what was undone after a restart; values of one
    step follow each other."""
    clock = steps + ahead[attempts] if len(ahead) > 1 else steps
    if len(clock) > 1 and not (np.diff(clock) > 0).all():
        places = np.arange(len(clock), dtype=np.int64)
        clock = np.maximum.accumulate(clock - places) + places
    return clock


def _by_run(table: Table, starts: Sequence[int], leader: Leader) -> list[list[LogEvent]]:
    """The events of each run. Words between two runs belong to the later one, except for
    those up to the last that says that the run has ended."""
    runs: list[list[LogEvent]] = [[] for _ in starts]
    at = 0
    border: list[LogEvent] = []
    for row, event in table.events:
        while at + 1 < len(starts) and row >= starts[at + 1]:
            at, border = at + 1, []
        low = starts[at]
        if row == low and at:
            placed = _placed(event, leader, row, low)
            border.append(placed)
            runs[at].append(placed)
            if event.kind in _ENDS:
                del runs[at][-len(border) :]
                before = starts[at - 1]
                runs[at - 1] += [_placed(one, leader, row, before) for one in border]
                border = []
        else:
            runs[at].append(_placed(event, leader, row, low))
    return runs


def _placed(event: LogEvent, leader: Leader, row: int, low: int) -> LogEvent:
    """An event at the step of the row before it, of the one after it at the start of a run."""
    if not leader.explicit:
        return event
    row = min(max(row - 1, low), len(leader.steps) - 1)
    return dataclasses.replace(event, step=int(leader.steps[row]))
