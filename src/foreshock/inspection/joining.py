"""Joins what the signals did into one episode: who moved first, and by how much it led."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshock.core.detector import Alarm
from foreshock.inspection.alarms import between, on_steps
from foreshock.inspection.excursion import Excursion, Terrain
from foreshock.inspection.finding import Episode, EpisodeKind, Movement
from foreshock.inspection.trace import Trace

_PRECURSOR_READINGS = 20
"""Readings before the loss moved in which another signal's movement counts as leading."""

_CALM = 3
"""Readings in range that part a precursor from what comes after."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A signal's excursion, with its trace."""

    trace: Trace
    excursion: Excursion


def precursor(terrain: Terrain, clock: int, peak_clock: int, *, short: bool) -> Excursion | None:
    """How a signal moved before and up to the loss's peak, if it did.

    Args:
        clock: when the loss left its range.
        peak_clock: when it was farthest out.
    """
    trace = terrain.trace
    here, until = trace.place(clock), trace.place(peak_clock + 1)
    low = max(0, here - _PRECURSOR_READINGS)
    known = terrain.range_before(low, lowest=True) if low >= _CALM else None
    if known is None or known.num_readings < _CALM:
        known = terrain.range_before(max(1, here), lowest=True)
    if known is None:
        return None
    above = ~(terrain.values[low:until] <= known.limit)
    if not above.any():
        return None
    start = int(np.argmax(above))
    calm = 0
    for place in range(start, min(here - low, len(above))):
        calm = 0 if above[place] else calm + 1
        if calm >= _CALM:  # in range again before the loss moved: another matter
            later = np.flatnonzero(above[place:])
            if not len(later):
                return None
            start, calm = place + int(later[0]), 0
    place = low + start
    return terrain.around(place, place, short=short)


def join(
    kind: EpisodeKind,
    main: Moved,
    others: Sequence[Moved],
    alarms: Mapping[str, tuple[Alarm, ...]],
) -> Episode:
    """One episode of the signal that it is about and those that moved with it."""
    moved = [main, *others]
    movements = tuple(
        sorted(
            (_movement(one, alarms.get(one.trace.signal, ())) for one in moved),
            key=lambda movement: movement.signal != main.trace.signal,
        )
    )
    clocks = {one.trace.signal: int(one.trace.clock[one.excursion.start]) for one in moved}
    onsets = {one.trace.signal: int(one.trace.steps[one.excursion.start]) for one in moved}
    first = min(
        moved, key=lambda one: (onsets[name := one.trace.signal], clocks[name], one is not main)
    )
    loss = next((one for one in moved if one.trace.signal == "loss"), None)
    onset = onsets[first.trace.signal]
    lead_move = lead_peak = None
    if loss is not None:
        lead_move = onsets["loss"] - onset
        lead_peak = int(loss.trace.steps[loss.excursion.peak]) - onset
    raised = [
        on_steps(within[0], one.trace)
        for one in moved
        if (within := _within(alarms.get(one.trace.signal, ()), one))
    ]
    alarm = min(raised, key=lambda each: (each.step, each.onset_step), default=None)
    end = main.excursion.end
    after = main.excursion.after_effect if loss is main else float("nan")
    return Episode(
        kind=kind,
        onset_step=onset,
        peak_step=int(main.trace.steps[main.excursion.peak]),
        end_step=None if end is None else int(main.trace.steps[end]),
        first_mover=first.trace.signal,
        lead_to_loss_move_steps=lead_move,
        lead_to_loss_peak_steps=lead_peak,
        causal_onset_step=alarm.onset_step if alarm else None,
        alarm_step=alarm.step if alarm else None,
        after_effect=after,
        after_effect_sds=after / main.excursion.range.spread,
        steps_lost=None if end is None or loss is not main else _lost(main),
        movements=movements,
        clock=int(main.trace.clock[main.excursion.peak]),
    )


def _movement(one: Moved, alarms: Sequence[Alarm]) -> Movement:
    trace, found = one.trace, one.excursion
    raised = _within(alarms, one)
    level = float(np.exp(found.range.level)) if _is_log(one) else found.range.level
    return Movement(
        signal=trace.signal,
        onset_step=int(trace.steps[found.start]),
        peak_step=int(trace.steps[found.peak]),
        end_step=None if found.end is None else int(trace.steps[found.end]),
        peak_value=float(trace.values[found.peak]),
        baseline=level,
        alarm_step=on_steps(raised[0], trace).step if raised else None,
        detectors=tuple(sorted({alarm.detector for alarm in raised})),
    )


def _is_log(one: Moved) -> bool:
    return one.trace.signal not in ("loss", "eval_loss", "loss_scale")


def _within(alarms: Sequence[Alarm], one: Moved) -> Sequence[Alarm]:
    trace, found = one.trace, one.excursion
    first = int(trace.clock[found.start])
    last = int(trace.clock[-1 if found.end is None else found.end])
    return between(alarms, first, last)


def _lost(main: Moved) -> int:
    trace, found = main.trace, main.excursion
    assert found.end is not None
    return int(trace.steps[found.end] - trace.steps[found.start])


def far_norms(loss: Trace, norm: Trace | None, seeds: "NDArray[np.int64]") -> "NDArray[np.bool_]":
    """`[T of the loss]` whether the gradient norm was far out of range at that time, one
    reading earlier, or one later."""
    moved = np.zeros(len(loss), np.bool_)
    if norm is None:
        return moved
    places = np.searchsorted(loss.clock, norm.clock[seeds])
    for shift in (-1, 0, 1):
        near = places + shift
        moved[near[(near >= 0) & (near < len(loss))]] = True
    return moved
