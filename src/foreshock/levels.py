"""Levels at which series stand in an incident, and whether they do again: no detector needed."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, final

import numpy as np

from foreshock.core.names import LOSS, series_name
from foreshock.incident_case import Recorded
from foreshock.replaying import Replay
from foreshock.window import Alarmed

CONTROL_STEPS: Final = 32
"""Healthy steps before a state, against which the level of what is trained on it is held."""

_LOSS: Final = series_name(LOSS.name)
_LEVEL_Z: Final = 6.0
_LEVEL_SHARE: Final = 1 / 3
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
    """

    series: str
    sign: int
    share: float


def stands_off(values: Sequence[float], control: Sequence[float], sign: int) -> list[bool]:
    """Of each value, whether it lies six robust deviations off a healthy level.

    The deviation is that of the control about its median, or by how much the control itself
    drifts from its first half to its second, if that is more.

    Args:
        values: of the steps that are judged.
        control: of healthy steps, in order; of fewer than eight nothing is said.
        sign: 1 for above, -1 for below.
    """
    healthy = np.array([one for one in control if np.isfinite(one)])
    if len(healthy) < _FEWEST_CONTROL:
        return [False] * len(values)
    middle, half = float(np.median(healthy)), len(healthy) // 2
    spread = 1.4826 * float(np.median(np.abs(healthy - middle)))
    drift = abs(float(np.median(healthy[half:]) - np.median(healthy[:half])))
    scale = max(spread, drift, _FLOOR * abs(middle), 1e-30)
    with np.errstate(all="ignore"):
        z = sign * (np.asarray(values, dtype=float) - middle) / scale
    return (z > _LEVEL_Z).tolist()


def level_of(series: str, values: Sequence[float], control: Sequence[float]) -> Level | None:
    """The level at which a series stands in an incident; None where it is none of its own.

    It is one if it stands off in a third of the steps, in three at least, and still in half of
    the last half of them: what falls back by itself is no level.
    """
    for sign in (1, -1):
        off = stands_off(values, control, sign)
        lasts = 2 * sum(off[len(off) // 2 :]) >= len(off) - len(off) // 2
        if sum(off) >= max(_FEW, _LEVEL_SHARE * len(off)) and lasts:
            return Level(series, sign, sum(off) / len(off))
    return None


def is_at(level: Level, values: Sequence[float], control: Sequence[float]) -> bool:
    """Whether a series stands off again as in the incident: in half as large a share of the
    steps at least, in three at least, and still so in the last half of them."""
    off = stands_off(values, control, level.sign)
    last = off[len(off) // 2 :]
    wanted = _HALF * level.share
    return sum(off) >= max(_FEW, wanted * len(off)) and sum(last) >= wanted * len(last) > 0


@final
class Levels:
    """Whether what stands off its healthy level in a run does so again when trained again.

    The loss alone is looked at if it is such a series, else those of the incident's alarms. Steps
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
        self._series = sorted({_LOSS, *(series for _, series in alarmed)})
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
