"""The alarms that live watching would have raised, from the same detectors over a log."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from foreshock.catalog import members
from foreshock.core.detector import Alarm, AlarmKind, Detector, copy_state
from foreshock.inspection.lineage import Return, stretches
from foreshock.inspection.trace import Trace

_PIECE = 1 << 18
_MAX_ALARMS = 50_000
"""Of one rule on one signal. Beyond it only the first alarm of each excursion is kept."""


def default_detectors() -> tuple[Detector, ...]:
    """Every detector that is found, as a live run has them by default."""
    return tuple(kind() for kind in members("detectors").values())


def raise_alarms(
    traces: Mapping[str, Trace],
    detectors: tuple[Detector, ...] | None = None,
    *,
    went_back: Sequence[Return] = (),
    progress: Callable[[int], None] = lambda num_readings: None,
) -> dict[str, tuple[Alarm, ...]]:
    """Run the detectors over a run's signals.

    Where the run went back, they go back too: what they remember is what they knew at the
    last reading that survived, as after a live resume from a snapshot of that step.

    Args:
        traces: by signal; each detector sees those that it watches.
        detectors: the defaults if None.
        went_back: where the run did; the first is its beginning.
        progress: told how many readings have been seen since the last call.

    Returns:
        Alarms by signal, in the order of time. Their `step` and `onset_step` are on the
        trace's clock, so that they stay in order over restarts.
    """
    found: dict[str, list[Alarm]] = {}
    for detector in detectors if detectors is not None else default_detectors():
        for name in detector.watches:
            if name in traces and len(traces[name]):
                alarms = _watch(detector, traces[name], went_back, progress)
                if alarms:
                    found.setdefault(name, []).extend(alarms)
    return {
        name: tuple(sorted(alarms, key=lambda alarm: alarm.step)) for name, alarms in found.items()
    }


def on_steps(alarm: Alarm, trace: Trace) -> Alarm:
    """The alarm with the log's steps in place of the clock. Where its onset fell into what a
    restart undid, it is the first reading after that."""
    place = min(trace.place(alarm.step), len(trace) - 1)
    onset = min(trace.place(alarm.onset_step), place)
    steps = trace.steps[onset : place + 1]
    return replace(
        alarm, step=int(steps[-1]), onset_step=int(steps[int(np.argmax(steps <= steps[-1]))])
    )


def between(alarms: Sequence[Alarm], first: int, last: int) -> Sequence[Alarm]:
    """Of alarms in the order of time, those from one time to another."""
    low = bisect_left(alarms, first, key=lambda alarm: alarm.step)
    high = bisect_left(alarms, last + 1, key=lambda alarm: alarm.step)
    return alarms[low:high]


def of_kind(kind: AlarmKind, alarms: Sequence[Alarm], trace: Trace) -> list[Alarm]:
    """Those of a kind, with the log's steps."""
    return [on_steps(alarm, trace) for alarm in alarms if alarm.kind is kind]


def at_readings(alarms: Sequence[Alarm], trace: Trace) -> tuple[Alarm, ...]:
    """Of alarms in the order of time, those at the readings of a part of the trace."""
    near = between(alarms, int(trace.clock[0]), int(trace.clock[-1])) if len(trace) else ()
    if not near:
        return ()
    clocks = np.array([alarm.step for alarm in near], np.int64)
    places = np.searchsorted(trace.clock, clocks)
    here = trace.clock[places] == clocks
    return tuple(alarm for alarm, is_here in zip(near, here.tolist(), strict=True) if is_here)


def _watch(
    detector: Detector,
    trace: Trace,
    went_back: Sequence[Return],
    progress: Callable[[int], None],
) -> list[Alarm]:
    """One detector over one signal: told of each restart, and in pieces, since any splitting
    gives the same alarms."""
    names = [f"{trace.signal}/global"]
    state = detector.init(names)
    goes_on = {
        one.start: one.past[-1][1] if one.past else 0
        for one in list(stretches(trace, went_back))[1:]
        if one.start < one.stop
    }
    wanted = Counter(goes_on.values())
    saved: dict[int, Any] = {}
    restarts = set((np.flatnonzero(np.diff(trace.attempts)) + 1).tolist())
    cuts = sorted({0, len(trace), *restarts, *goes_on, *wanted})
    alarms: list[Alarm] = []
    for start, end in pairwise(cuts):
        if start in wanted:
            saved[start] = copy_state(state) if start else detector.init(names)
        if start in goes_on:
            past = goes_on[start]
            wanted[past] -= 1
            state = copy_state(saved[past]) if wanted[past] else saved.pop(past)
        if start in restarts:
            state = detector.resumed(state)
        for low in range(start, end, _PIECE):
            high = min(low + _PIECE, end)
            state, found = detector.update(
                state, trace.clock[low:high], trace.values[low:high, None]
            )
            if len(alarms) + len(found) > _MAX_ALARMS:
                found = _firsts(alarms[-1:] + found)[len(alarms[-1:]) :]
            alarms += found
            progress(high - low)
    return alarms


def _firsts(alarms: list[Alarm]) -> list[Alarm]:
    """The first alarm of each excursion."""
    return [
        alarm
        for place, alarm in enumerate(alarms)
        if not place or alarm.onset_step != alarms[place - 1].onset_step
    ]
