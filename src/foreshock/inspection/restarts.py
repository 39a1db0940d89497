"""Judges each restart: whether the loss went on where it had been."""

from collections.abc import Sequence

import numpy as np

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.log import Floats
from foreshock.core.stats import MAD_TO_SD
from foreshock.inspection.alarms import between, of_kind
from foreshock.inspection.finding import Episode, EpisodeKind, begins_at
from foreshock.inspection.trace import Trace

_AFTER, _BEFORE = 5, 30
_LEAST_READINGS = 3
_SDS = 6.0
_LEAST_SHARE = 0.05
"""A restart on other hardware or another batch order moves the loss by a percent or two."""

_MAX_EPISODES = 50


def find_discontinuities(loss: Trace, alarms: Sequence[Alarm]) -> list[Episode]:
    """Restarts after which the loss jumped, or dropped (data seen before, or a wrong
    average), by more than its noise and 5 %.

    Args:
        alarms: causal ones of the loss, on the log's clock.
    """
    found: list[Episode] = []
    places = (np.flatnonzero(np.diff(loss.attempts)) + 1).tolist()
    bounds = [0, *places, len(loss)]
    for number, place in enumerate(places):
        last_place, next_place = bounds[number], bounds[number + 2]
        before = _finite(loss.values[max(0, place - 4 * _BEFORE) : place])[-_BEFORE:]
        stop = min(place + _AFTER, next_place)
        after = _finite(loss.values[place:stop])
        if len(after) < _LEAST_READINGS or len(before) < _LEAST_READINGS:
            continue
        first = int(loss.steps[place])
        again = _same_steps(loss, last_place, place, stop)
        level = float(np.median(before[-10:])) if again is None else again
        noise = MAD_TO_SD * float(np.median(np.abs(before - np.median(before))))
        now = float(np.median(after))
        if abs(now - level) <= max(_SDS * noise, _LEAST_SHARE * abs(level)):
            continue
        word = "jumped" if now > level else "dropped"
        mine = between(alarms, int(loss.clock[place]), int(loss.clock[next_place - 1]))
        found.append(
            begins_at(
                EpisodeKind.RESTART_DISCONTINUITY,
                "loss",
                first,
                int(loss.clock[place]),
                f"at the restart at step {first} the loss {word} from {level:.4g} to {now:.4g}",
                value=now,
                baseline=level,
                alarms=of_kind(AlarmKind.DISCONTINUITY, mine, loss)[:1],
            )
        )
        if len(found) >= _MAX_EPISODES:
            break
    return found


def _same_steps(loss: Trace, last_place: int, place: int, stop: int) -> float | None:
    """The level of the same steps before the restart, where they were trained twice."""
    ours, theirs = loss.steps[place:stop], loss.steps[last_place:place]
    low = last_place + int(np.searchsorted(theirs, ours[0]))
    high = last_place + int(np.searchsorted(theirs, ours[-1], side="right"))
    values = _finite(loss.values[low:high][np.isin(loss.steps[low:high], ours)])
    return float(np.median(values)) if len(values) >= _LEAST_READINGS else None


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]
