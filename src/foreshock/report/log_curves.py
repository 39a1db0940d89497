"""The series of a log as curves, and the part of one that a small chart draws."""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from foreshock.core.log import LoggedRun, LogSeries
from foreshock.inspection.finding import Episode, EpisodeKind, Movement
from foreshock.report.curves import MAX_POINTS, Curve, Floats, Ints, Mark, nonfinite_marks, thin

_BEFORE_SHARE: Final = 0.6
"""Of an episode's length, what is shown before it. Our choice: the level it left is seen."""

_LEAST_AROUND: Final = 12
"""Values shown on either side of it at least."""

_MOST_AFTER_LENGTHS: Final = 8


class Window(NamedTuple):
    """A stretch of one series in the order of the file.

    Attributes:
        clock, steps, values: `[T]`.
        restarts: clocks of the first values after a restart.
    """

    clock: Ints
    steps: Ints
    values: Floats
    restarts: tuple[int, ...]


def logged_curve(
    series: LogSeries,
    max_points: int = MAX_POINTS,
    *,
    first: int | None = None,
    last: int | None = None,
) -> Curve:
    """A series from a first to a last step: what counts, and apart from it what restarts undid."""
    steps: list[Ints] = []
    values: list[Floats] = []
    undone: list[tuple[Ints, Floats]] = []
    marks: list[Mark] = []
    kept_to: int | None = None
    near = np.ones(len(series), bool)
    near &= True if first is None else series.steps >= first
    near &= True if last is None else series.steps <= last
    for attempt in np.unique(series.attempts[near])[::-1]:
        mine = near & (series.attempts == attempt)
        at, column = series.steps[mine], series.values[mine]
        gone = np.zeros(len(at), bool) if kept_to is None else at > kept_to
        steps.append(at[~gone])
        values.append(column[~gone])
        marks += nonfinite_marks(at[~gone], column[~gone], undone=False)
        if gone.any():
            joint = max(int(gone.argmax()) - 1, 0)
            undone.append(thin(at[joint:], column[joint:], max_points // 4))
            marks += nonfinite_marks(at[gone], column[gone], undone=True)
        kept_to = int(at.min()) - 1 if kept_to is None else min(kept_to, int(at.min()) - 1)
    at = np.concatenate([np.zeros(0, np.int64), *steps[::-1]])
    column = np.concatenate([np.zeros(0), *values[::-1]])
    thinned, kept = thin(at, column, max_points)
    return Curve(
        series=series.signal,
        steps=thinned,
        values=kept,
        undone=tuple(undone[::-1]),
        marks=tuple(sorted(marks, key=lambda mark: mark.step)),
        longest=len(at),
    )


def whole(series: LogSeries) -> Window:
    """All of a series."""
    return _window(series, np.ones(len(series), bool))


def around(run: LoggedRun, episode: Episode) -> Callable[[str], Window | None]:
    """What of each signal lies around an episode: one stretch of the file for all of them."""
    anchor = _anchor(run, episode)
    if anchor is None:
        return lambda signal: None
    series, peak = anchor
    clock = series.clock
    start = clock[nearest(series, episode.onset_step, int(clock[peak]))]
    if episode.end_step is None:
        end = max(int(clock[-1]), int(clock[peak]))
    else:
        end = int(clock[nearest(series, episode.end_step, int(clock[peak]), after=peak)])
    spacing = int(np.median(np.diff(clock))) if len(clock) > 1 else 1
    moved = max(int(clock[peak]) - int(start), spacing)
    if episode.kind is not EpisodeKind.PLATEAU:  # of which the length is the point
        end = min(end, int(clock[peak]) + _MOST_AFTER_LENGTHS * moved + 60 * spacing)
    room = max(int(_BEFORE_SHARE * (end - start)), _LEAST_AROUND * spacing)
    first, last = int(start) - room, end + room // 2

    def part(signal: str) -> Window | None:
        one = run.series.get(signal)
        if one is None:
            return None
        near = (one.clock >= first) & (one.clock <= last)
        return _window(one, near) if near.any() else None

    return part


def nearest(series: LogSeries, step: int, clock: int, *, after: int = 0) -> int:
    """Place of the value of a step that lies nearest to a point of the file.

    A step that was trained twice, before and after a restart, has two.
    """
    apart = np.abs(series.steps[after:] - step)
    places = np.flatnonzero(apart == apart.min()) + after
    return int(places[np.abs(series.clock[places] - clock).argmin()])


def movement_of(episode: Episode, signal: str) -> Movement | None:
    """How a signal moved in an episode, if it did."""
    return next((one for one in episode.movements if one.signal == signal), None)


def _anchor(run: LoggedRun, episode: Episode) -> tuple[LogSeries, int] | None:
    """A series that moved, and the place of its peak in it."""
    movements = [
        one
        for signal in ("loss", episode.first_mover)
        if (one := movement_of(episode, signal)) is not None
    ]
    for movement in (*movements, *episode.movements):
        series = run.series.get(movement.signal)
        if series is not None and len(series):
            same = (series.steps == movement.peak_step) & np.isclose(
                series.values, movement.peak_value, equal_nan=True, rtol=1e-6
            )
            place = np.flatnonzero(same)
            if len(place):
                return series, int(place[0])
            return series, nearest(series, movement.peak_step, 0)
    for signal in ("loss", episode.first_mover, *run.series):
        series = run.series.get(signal)
        if series is not None and len(series):
            return series, nearest(series, episode.peak_step, 0)
    return None


def _window(series: LogSeries, near: np.ndarray) -> Window:
    again = np.flatnonzero(np.diff(series.attempts[near])) + 1
    clock = series.clock[near]
    return Window(
        clock=clock,
        steps=series.steps[near],
        values=series.values[near],
        restarts=tuple(int(clock[place]) for place in again),
    )
