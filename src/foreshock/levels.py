"""Levels at which series stand in an incident, and whether they do again: no detector needed."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, final

import numpy as np

from foreshock.core.names import LOSS, LR, UPDATE_NORM, UPDATE_RATIO, series_name, split_series
from foreshock.core.stats import MAD_TO_SD
from foreshock.incident_case import Recorded
from foreshock.replaying import Replay
from foreshock.trial import is_close
from foreshock.window import Alarmed

CONTROL_STEPS: Final = 32
"""Healthy steps before a state, against which the level of what is trained on it is held."""

_LOSS: Final = series_name(LOSS.name)
_OF_THE_RATE: Final = frozenset(one.name for one in (LR, UPDATE_NORM, UPDATE_RATIO))
_LEVEL_Z: Final = 6.0
_LEAST_SHARE: Final = 1 / 3
_HALF: Final = 0.5
_FEW: Final = 3
_FEWEST_CONTROL: Final = 8
_FLOOR: Final = 1e-6
_SHOWN: Final = 3


class Level(NamedTuple):
    """A series that stands off its healthy level in an incident.

    Attributes:
        series: its name.
        sign: 1 above, -1 below.
        share: of the incident's steps in which it does.
        height: median distance of those from the healthy median.
    """

    series: str
    sign: int
    share: float
    height: float


def stands_off(values: Sequence[float], control: Sequence[float], sign: int) -> list[float]:
    """Of each value how far it is off a healthy level, 0 within six robust deviations.

    The deviation is that of the control about its median, or by how much the control itself
    drifts from its first half to its second, if that is more.

    Args:
        values: of the steps that are judged.
        control: of healthy steps, in order; of fewer than eight nothing is said.
        sign: 1 for above, -1 for below.
    """
    healthy = np.array([one for one in control if np.isfinite(one)])
    if len(healthy) < _FEWEST_CONTROL:
        return [0.0] * len(values)
    middle, half = float(np.median(healthy)), len(healthy) // 2
    spread = MAD_TO_SD * float(np.median(np.abs(healthy - middle)))
    drift = abs(float(np.median(healthy[half:]) - np.median(healthy[:half])))
    scale = max(spread, drift, _FLOOR * abs(middle), 1e-30)
    off = [sign * (value - middle) for value in values]
    return [one if one > _LEVEL_Z * scale else 0.0 for one in off]


def level_of(series: str, values: Sequence[float], control: Sequence[float]) -> Level | None:
    """The level at which a series stands in an incident; None where it is none of its own.

    It is one if it stands off in a third of the steps, in three at least, and still in half of
    the last half of them: what falls back by itself is no level.
    """
    for sign in (1, -1):
        off = stands_off(values, control, sign)
        num, last = _count(off), off[len(off) // 2 :]
        if num >= max(_FEW, _LEAST_SHARE * len(off)) and _count(last) >= _HALF * len(last):
            height = float(np.median([one for one in off if one > 0]))
            return Level(series, sign, num / len(off), height)
    return None


def is_at(level: Level, values: Sequence[float], control: Sequence[float]) -> bool:
    """Whether a series stands off again as in the incident: by a third as much, in half as large a
    share of the steps, in three at least, and still so in the last half of them."""
    found = stands_off(values, control, level.sign)
    off = [one if one >= _LEAST_SHARE * level.height else 0.0 for one in found]
    last, wanted = off[len(off) // 2 :], _HALF * level.share
    return _count(off) >= max(_FEW, wanted * len(off)) and _count(last) >= wanted * len(last)


def _count(off: Sequence[float]) -> int:
    return sum(one > 0 for one in off)


@final
class Levels:
    """Whether what stands off its healthy level in a run does so again when trained again.

    The loss alone is looked at if it is such a series, else those of the incident's alarms; not
    the rate, nor what goes with it, which is a setting more than a trouble. Steps
    are held against the readings that a snapshot holds of the steps before it: those of a replayed
    lead are no control, because what is wrong with the program is in them too.

    Args:
        replay: at the clean state.
        recorded: what the run measured.
        alarmed: of the incident.
        steps: of the incident, from the onset on.
    """

    def __init__(
        self, replay: Replay, recorded: Recorded, alarmed: Alarmed, steps: Sequence[int]
    ) -> None:
        self._replay = replay
        own = {series for _, series in alarmed if split_series(series)[0] not in _OF_THE_RATE}
        self._series = sorted({_LOSS, *own})
        self._clean = self._now()
        self._older: dict[str, list[float]] = {}
        self.known: list[Level] = []
        """Those of the incident."""
        for names in ([_LOSS], self._series):
            for name in names:
                told = recorded.values(name)
                before = [value for step, value in told.items() if step < steps[0]]
                there = [told[step] for step in steps if step in told]
                found = level_of(name, there, [*self._clean[name], *before])
                self.known += [] if found is None else [found]
            if self.known:
                break

    def note_older(self) -> None:
        """Take what the state as it is knows of the steps before it: it is the older clean one."""
        self._older = self._older or self._now()

    def again(self, values: Callable[[str], Sequence[float]], *, on_older: bool) -> str:
        """The series that stand off again, if half of those that did do; "" else.

        Args:
            values: of a series, in the steps that were trained.
            on_older: whether they were trained on the older clean state.
        """
        control = self._older if on_older else self._clean
        found = [
            one.series for one in self.known if is_at(one, values(one.series), control[one.series])
        ]
        return ", ".join(found[:_SHOWN]) if 2 * len(found) >= len(self.known) > 0 else ""

    def _now(self) -> dict[str, list[float]]:
        return {name: self._replay.history(name, CONTROL_STEPS) for name in self._series}


def differing(replay: Replay, recorded: Recorded, step: int) -> list[str] | None:
    """Series that the run measured otherwise in a step, in order; None where unknown."""
    if step not in recorded.rows or step not in replay.rows:
        return None
    return recorded.differing(step, replay.rows[step][1], replay.series)


def compared(
    replay: Replay, recorded: Recorded, steps: Iterable[int]
) -> tuple[bool | None, bool | None]:
    """Whether replayed steps are the run's bit by bit, and whether their losses are within a tenth
    of their noise; None where nothing is known."""
    steps = list(steps)
    found = [differing(replay, recorded, step) for step in steps]
    known = [one for one in found if one is not None]
    exact = all(not one for one in known) if known else None
    told, here = recorded.values(_LOSS), replay.losses
    both = [one for one in steps if one in told and one in here]
    close = is_close([told[one] for one in both], [here[one] for one in both])
    return exact, exact if close is None else close
