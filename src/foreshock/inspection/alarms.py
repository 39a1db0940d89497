"""The alarms that live watching would have raised, from the same detectors over a log."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from foreshock.catalog import members
from foreshock.core.detector import Alarm, Detector
from foreshock.inspection.trace import Trace

_PIECE = 1 << 18
_MAX_ALARMS = 50_000


def default_detectors() -> tuple[Detector, ...]:
    """Every detector that is found, as a live run has them by default."""
    return tuple(kind() for kind in members("detectors").values())


def raise_alarms(
    traces: Mapping[str, Trace],
    detectors: tuple[Detector, ...] | None = None,
    *,
    progress: Callable[[int], None] = lambda num_readings: None,
) -> dict[str, tuple[Alarm, ...]]:
    """Run the detectors over a run's signals.

    Args:
        traces: by signal; each detector sees those that it watches.
        detectors: the defaults if None.
        progress: told how many readings have been seen since the last call.

    Returns:
        Alarms by signal, in the order of time. Their `step` and `onset_step` are on the
        trace's clock, so that they stay in order over restarts.
    """
    found: dict[str, list[Alarm]] = {}
    for detector in detectors if detectors is not None else default_detectors():
        for name in detector.watches:
            if name in traces and len(traces[name]):
                alarms = _watch(detector, traces[name], progress)
                if alarms:
                    found.setdefault(name, []).extend(alarms)
    return {
        name: tuple(sorted(alarms, key=lambda alarm: alarm.step)) for name, alarms in found.items()
    }


def on_steps(alarm: Alarm, trace: Trace) -> Alarm:
    """The alarm with the log's steps in place of the clock."""
    if len(trace) and trace.clock[-1] == trace.steps[-1] and trace.clock[0] == trace.steps[0]:
        return alarm
    return replace(
        alarm,
        step=int(trace.steps[min(trace.place(alarm.step), len(trace) - 1)]),
        onset_step=int(trace.steps[min(trace.place(alarm.onset_step), len(trace) - 1)]),
    )


def _watch(detector: Detector, trace: Trace, progress: Callable[[int], None]) -> list[Alarm]:
    """One detector over one signal: told of each restart, and in pieces, since any splitting
    gives the same alarms."""
    state = detector.init([f"{trace.signal}/global"])
    alarms: list[Alarm] = []
    restarts = (np.flatnonzero(np.diff(trace.attempts)) + 1).tolist()
    for start, end in zip([0, *restarts], [*restarts, len(trace)], strict=True):
        if start:
            state = detector.resumed(state)
        for low in range(start, end, _PIECE):
            high = min(low + _PIECE, end)
            state, found = detector.update(
                state, trace.clock[low:high], trace.values[low:high, None]
            )
            if len(alarms) < _MAX_ALARMS:
                alarms += found
            progress(high - low)
    return alarms
