"""Judges the loss scale: a healthy search and its cycle of growth, or a collapse."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshock.core.log import EventKind, LoggedRun
from foreshock.inspection.trace import Trace, time_of

_HALVINGS = 5
"""Halvings without growth in between, after a calm stretch. A healthy scale is halved once
after each growth; three in a row happen; five are a factor of 32."""

_LOW = 1.0
_FIRST_READINGS, _SEARCH_READINGS = 2, 5
_SEARCH_STEPS, _EARLY_STEPS = 50, 100
"""The search for the first scale begins within 50 steps of a log that begins within 100 (or one
distance of its records) of the training; it needs one overflow a halving, and 2**32 has 32."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """A loss scale that fell without end.

    Attributes:
        start_step, end_step: where the fall began, and its last reading.
        before, after: the scale there.
        start_clock: the start on the log's clock.
        reason: in words.
    """

    start_step: int
    end_step: int
    before: float
    after: float
    start_clock: int
    reason: str


def find_collapse(run: LoggedRun, scale: Trace | None, *, loss_rose: bool) -> Collapse | None:
    """The collapse of the loss scale, if there is one.

    Args:
        loss_rose: the loss is out of range at the end: then two halvings in a row, after
            the search is over, are not the healthy cycle.
    """
    floor = next((e for e in run.events if e.kind is EventKind.SCALE_FLOOR), None)
    if scale is None or len(scale) == 0:
        if floor is None:
            return None
        step, clock = time_of(floor, run)
        return Collapse(
            start_step=step, end_step=step, before=float("nan"), after=float("nan"),
            start_clock=clock, reason="the program says that the loss scale reached its minimum",
        )  # fmt: skip
    values = scale.values
    start, end = _last_fall(scale)
    before, after = float(values[start]), float(values[end])
    reason = ""
    if floor is not None:
        reason = "the program says that the loss scale reached its minimum"
    elif after <= 0:
        reason = f"the loss scale is {after:g}: every gradient is lost"
    elif after < _LOW and before > after and not _grew_again(scale, end):
        reason = f"the loss scale fell from {before:g} to {after:g}, below 1"
    elif (
        float(values.min()) < _LOW
        and float(values.max()) > float(values.min())
        and not _grew_again(scale, low := int(np.argmin(values)))
    ):
        start, end = _fall_to(scale, low)
        before, after = float(values[start]), float(values[end])
        reason = f"the loss scale fell from {before:g} to {after:g}, below 1"
    else:
        needed = 2 if loss_rose else _HALVINGS
        if before >= after * 2**needed and not _is_search(run, scale, start):
            reason = f"the loss scale fell from {before:g} to {after:g} without growing again"
    if not reason:
        return None
    return Collapse(
        start_step=int(scale.steps[start]), end_step=int(scale.steps[end]),
        before=before, after=after, start_clock=int(scale.clock[start]), reason=reason,
    )  # fmt: skip


def _last_fall(scale: Trace) -> tuple[int, int]:
    """The longest fall without growth: from the last reading at its top to its bottom. Where
    the steps go back, another begins."""
    values: list[float] = scale.values.tolist()
    best, depth = (len(values) - 1, len(values) - 1), 1.0
    top = 0
    back = np.diff(scale.steps) < 0
    for place in (np.flatnonzero((np.diff(scale.values) != 0) | back) + 1).tolist():
        if back[place - 1] or not values[place] < values[place - 1]:
            top = place
            continue
        if values[place - 1] == values[top]:
            top = place - 1
        fall = _ratio(values[top], values[place])
        if fall > depth:
            best, depth = (top, place), fall
    return best


def _grew_again(scale: Trace, low: int) -> bool:
    """Whether it grew after its lowest reading, before any restart: a scale that is low but
    alive, as of a loss that is summed."""
    own = scale.attempts[low:] == scale.attempts[low]
    return bool((scale.values[low:][own] > scale.values[low]).any())


def _fall_to(scale: Trace, low: int) -> tuple[int, int]:
    falls = (np.diff(scale.values[: low + 1]) <= 0) & (np.diff(scale.steps[: low + 1]) >= 0)
    rises = np.flatnonzero(~falls)
    return (int(rises[-1]) + 1 if len(rises) else 0), low


def _is_search(run: LoggedRun, scale: Trace, start: int) -> bool:
    """Whether a fall belongs to the search for the first scale, at the start of training.

    Where every record shows the scale, the search begins with the first of them; where
    only overflows are printed, nobody sees how calm it was before.
    """
    loss = run.series.get("loss")
    in_records = loss is not None and 2 * len(scale) >= len(loss) and len(scale) >= 5
    if in_records and len(np.unique(scale.steps)) > len(scale) // 2:
        if start > _FIRST_READINGS:
            return False
    elif not run.has_steps:
        return start <= _SEARCH_READINGS
    if not run.has_steps:
        return True
    first = min(int(one.steps.min()) for one in run.series.values() if len(one))
    early = _EARLY_STEPS if loss is None else max(_EARLY_STEPS, Trace.of(loss).interval_steps)
    return first <= early and int(scale.steps[start]) - first <= _SEARCH_STEPS


def _ratio(high: float, low: float) -> float:
    if low > 0:
        return high / low
    return float("inf") if high > 0 else 1.0
