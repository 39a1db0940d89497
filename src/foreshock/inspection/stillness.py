"""Judges what does not move: a dead run, and one that never learned."""

from dataclasses import dataclass

import numpy as np

from foreshock.core.log import Floats, Ints
from foreshock.core.stats import MAD_TO_SD
from foreshock.inspection.loss import rolling_median
from foreshock.inspection.trace import Ready, Trace, tail_of

_DEAD_READINGS = 5
_MIN_READINGS = 50
_FROM_START = 3
_PROGRESS = 0.02
_STUCK_SHARE = 0.7
"""Share of a run without any progress, after its loss had risen above where it began."""

_UNLEARNED = 0.4
"""Share of its first loss at which a run has learned little: from there down, standing still
is what the end of a healthy run looks like."""

_EARLY_RISE = 0.1
_WINDOW = 100
_ZERO = 1e-4


@dataclass(frozen=True, kw_only=True)
class Stillness:
    """A stretch without learning, from place `start` to the end, and why it is called so."""

    start: int
    reason: str


def find_stillness(ready: Ready, loss: Trace) -> Stillness | None:
    """A loss that is constant, exactly zero, or no better than at the start of the run."""
    if ready.is_rl or not loss.finite.any():
        return None
    values = loss.values[loss.finite]
    places = np.flatnonzero(loss.finite)
    dead = _dead(ready, values)
    if dead is not None:
        return Stillness(start=int(places[dead[0]]), reason=dead[1])
    if len(values) < _MIN_READINGS or not _from_start(loss):
        return None
    window = int(np.clip(len(values) // 20, 5, _WINDOW))
    levels = rolling_median(values, window)
    first, last = float(levels[0]), float(levels[-1])
    span = float(levels.max() - levels.min())
    if span <= _PROGRESS * abs(first) and first - last <= _PROGRESS / 2 * abs(first):
        reason = f"the loss stays between {levels.min():.4g} and {levels.max():.4g} from the start"
        return Stillness(start=int(places[0]), reason=reason)
    return _stuck(values, levels, places)


def _dead(ready: Ready, values: Floats) -> tuple[int, str] | None:
    """Where the loss became exactly constant, or next to nothing beside a dead gradient."""
    same = values == values[-1]
    start = tail_of(same)
    length = len(values) - start
    if length >= _DEAD_READINGS and length >= len(values) // 5:
        return start, f"the loss is exactly {values[-1]:g} in the last {length} readings"
    norm = ready.grad_norm
    if norm is None or not len(norm):
        return None
    if abs(values[-1]) < _ZERO and norm.values[-1] < _ZERO and np.abs(values).max() > _ZERO:
        low = np.abs(values) < _ZERO
        start = tail_of(low)
        if start and abs(values[start - 1]) > 1000 * _ZERO:
            return start, (
                f"the loss fell from {values[start - 1]:.4g} to {values[-1]:.2g} at once, and the "
                "gradient vanished with it"
            )
    return None


def _stuck(values: Floats, levels: Floats, places: Ints) -> Stillness | None:
    """A run that rose above its start early, and has not moved for most of its length."""
    early = values[: max(3, len(values) // 20)]
    from_place = int((1 - _STUCK_SHARE) * len(levels))
    rest = levels[from_place:]
    third = max(1, len(rest) // 3)
    moved = float(np.median(rest[:third]) - np.median(rest[-third:]))
    noise = float(np.median(np.abs(values[from_place:] - np.median(values[from_place:]))))
    rise = float(early[1:].max() - values[0])
    if rise <= max(_EARLY_RISE * abs(values[0]), 6 * MAD_TO_SD * noise):
        return None
    still = moved < max(0.5 * noise, _PROGRESS * abs(float(rest[-1])))
    if still and rest[-1] > _UNLEARNED * values[0]:
        return Stillness(
            start=int(places[from_place]),
            reason=(
                f"the loss rose to {early.max():.4g} right after the start and has stood at "
                f"{float(np.median(rest)):.4g} for the last {_STUCK_SHARE:.0%} of the run"
            ),
        )
    return None


def _from_start(loss: Trace) -> bool:
    return int(loss.steps[0]) <= _FROM_START * loss.interval_steps
