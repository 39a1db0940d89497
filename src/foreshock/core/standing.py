"""How a series of a case moved, and what was measured when.

Arithmetic that several looks share. Only finite values count here: a value
that is not is a symptom of its own.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshock.core.case import Case
from foreshock.core.looking import graded
from foreshock.core.names import LOSS, series_name
from foreshock.core.reading import Reading

_LOSS_MOVED_Z = 6.0
_RISE_STEPS = (300, 100)
_RISE_LEAST = 9
_RISE_LAST = 3


def finite_in(
    case: Case, series: str, first: int | None, last: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps and finite values of a series from `first` to `last`, both included, `[N]` each."""
    values = case.timeline.values(series, first, last)
    finite = np.isfinite(values)
    return case.timeline.steps_of(series, first, last)[finite], values[finite]


def reading_at(case: Case, series: str, step: int) -> tuple[Reading, ...]:
    """What was measured of a series at one step, as evidence."""
    return tuple(case.timeline.readings(series, int(step), int(step)))


def loss_moved(case: Case) -> int | None:
    """First step at which the loss left its range: by its alarms, else by six deviations."""
    if case.loss_moved_step is not None:
        return case.loss_moved_step
    jump = case.first_beyond(series_name(LOSS.name), z=_LOSS_MOVED_Z)
    return None if jump is None else jump.step


@dataclass(frozen=True, kw_only=True)
class Rise:
    """How a magnitude grew over the last steps before some step.

    Attributes:
        ratio: last over first.
        natural: by how many times it may have grown in any young model: as the step itself.
        first: where it stood, the median of the first sixth of the values.
        last: where it stands, the median of the last three values.
        num_steps: over how many steps.
        readings: the first and the last one.
    """

    ratio: float
    natural: float
    first: float
    last: float
    num_steps: int
    readings: tuple[Reading, ...]

    def degree(self, no: float, yes: float) -> float:
        """How clearly it grew by so many times, and not as it does early in every training."""
        return graded(self.ratio / self.natural, no, yes)


def rise_of(case: Case, series: str, before: int) -> Rise | None:
    """How the magnitude of a series grew in up to 300 steps before `before`, or in up to 100.

    Of the two the one that stands out more. None of fewer than 9 finite values. First and last
    are medians, of a sixth of the values and of three.

    Logits, activations and weights of every model grow early in its training, by no more than in
    proportion to the step (measured: the norm of a head without weight decay does). No source: our
    choice, because growth that ends a run outpaces that.
    """
    found = [rise for reach in _RISE_STEPS if (rise := _rise(case, series, before - reach, before))]
    return max(found, key=lambda one: one.ratio / one.natural, default=None)


def _rise(case: Case, series: str, first_step: int, before: int) -> Rise | None:
    steps, values = finite_in(case, series, first_step, before - 1)
    values = np.abs(values)
    if len(values) < _RISE_LEAST:
        return None
    part = max(_RISE_LAST, len(values) // 6)
    first, last = float(np.median(values[:part])), float(np.median(values[-_RISE_LAST:]))
    if first <= 0:
        return None
    begun, now = float(np.median(steps[:part])), float(np.median(steps[-_RISE_LAST:]))
    return Rise(
        ratio=last / first,
        natural=max(1.0, now / max(begun, 1.0)),
        first=first,
        last=last,
        num_steps=int(steps[-1] - steps[0]),
        readings=reading_at(case, series, steps[0]) + reading_at(case, series, steps[-1]),
    )
