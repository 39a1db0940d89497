"""Judges each restart: whether the loss went on where it had been."""

import numpy as np

from foreshock.core.log import Floats
from foreshock.core.stats import MAD_TO_SD
from foreshock.inspection.finding import Episode, EpisodeKind, Movement
from foreshock.inspection.trace import Trace

_AFTER, _BEFORE = 5, 30
_LEAST_READINGS = 3
_SDS = 6.0
_LEAST_SHARE = 0.05
"""A restart on other hardware or another batch order moves the loss by a percent or two."""

_MAX_EPISODES = 50


def find_discontinuities(loss: Trace) -> list[Episode]:
    """Restarts after which the loss jumped, or dropped (data seen before, or a wrong
    average), by more than its noise and 5 %."""
    found: list[Episode] = []
    for place in (np.flatnonzero(np.diff(loss.attempts)) + 1).tolist():
        before = _finite(loss.values[max(0, place - 4 * _BEFORE) : place])[-_BEFORE:]
        after = _finite(loss.values[place : place + _AFTER])
        if len(after) < _LEAST_READINGS or len(before) < _LEAST_READINGS:
            continue
        first = int(loss.steps[place])
        again = _same_steps(loss, place)
        level = float(np.median(before[-10:])) if again is None else again
        noise = MAD_TO_SD * float(np.median(np.abs(before - np.median(before))))
        now = float(np.median(after))
        if abs(now - level) <= max(_SDS * noise, _LEAST_SHARE * abs(level)):
            continue
        word = "jumped" if now > level else "dropped"
        found.append(
            Episode(
                kind=EpisodeKind.RESTART_DISCONTINUITY,
                onset_step=first,
                peak_step=first,
                end_step=None,
                first_mover="loss",
                lead_to_loss_move_steps=0,
                lead_to_loss_peak_steps=0,
                movements=(
                    Movement(
                        signal="loss",
                        onset_step=first,
                        peak_step=first,
                        end_step=None,
                        peak_value=now,
                        baseline=level,
                    ),
                ),
                statement=(
                    f"at the restart at step {first} the loss {word} from {level:.4g} to {now:.4g}"
                ),
            )
        )
        if len(found) >= _MAX_EPISODES:
            break
    return found


def _same_steps(loss: Trace, place: int) -> float | None:
    """The level of the same steps before the restart, where they were trained twice."""
    ours = slice(place, place + _AFTER)
    earlier = slice(max(0, place - 100_000), place)
    mine = loss.attempts[earlier] == loss.attempts[place - 1]
    twice = np.isin(loss.steps[earlier], loss.steps[ours]) & mine
    values = _finite(loss.values[earlier][twice])
    return float(np.median(values)) if len(values) >= _LEAST_READINGS else None


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]
