"""What a mirror of a run is given: readings with their thresholds, alarms, notices."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.detector import Alarm
from foreshock.core.reading import is_absent
from foreshock.core.text import one_line

if TYPE_CHECKING:
    from foreshock.core.sink import Notice

THRESHOLD: Final = "threshold/"
"""What stands before a series where its threshold is a value of its own."""

MAX_ALARMS: Final = 20
"""Alarms of one step that are told in words. Our choice: what fits a screen."""


@dataclass(frozen=True, kw_only=True)
class MirroredRun:
    """The run that is mirrored.

    Attributes:
        name: what to call it.
        run_dir: where its journal is; empty if it has none.
    """

    name: str
    run_dir: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MirroredStep:
    """One step as it was measured. After a rollback steps go backwards and `attempt` rises.

    Attributes:
        attempt: rises at every rollback and every resume.
        step: optimizer step.
        time_secs: when it was read, since 1970.
        committed: whether its update was made.
        alarms: those that the step raised.
        series: `signal/scope` of the values, `[S]`, whatever letters a module's path has that
            UTF-8 can encode. None at all where the readings were dropped, and only the alarms
            are left.
        values: `[S]` float32; `ABSENT` where nothing was measured.
        thresholds: `[S]` what a value would have to exceed now to raise an alarm, inf or NaN
            where no single value does; None in steps that do not tell them.
    """

    attempt: int
    step: int
    time_secs: float
    committed: bool
    alarms: tuple[Alarm, ...] = ()
    series: tuple[str, ...] = ()
    values: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    thresholds: NDArray[np.float64] | None = None

    @property
    def num_readings(self) -> int:
        """How many values were measured."""
        return len(self.series) - int(np.count_nonzero(is_absent(self.values)))

    def readings(self) -> dict[str, float]:
        """What was measured, by series. NaN and Inf are among it."""
        absent = is_absent(self.values)
        named = zip(self.series, self.values.tolist(), absent.tolist(), strict=True)
        return {series: value for series, value, missing in named if not missing}

    def limits(self) -> dict[str, float]:
        """The thresholds that are told and finite, by series."""
        if self.thresholds is None:
            return {}
        finite = np.flatnonzero(np.isfinite(self.thresholds))
        limits = self.thresholds[finite].tolist()
        return {self.series[at]: limit for at, limit in zip(finite.tolist(), limits, strict=True)}

    def scalars(self, prefix: str) -> dict[str, float]:
        """Everything that is a number, by names that begin with `prefix`: the readings, the
        thresholds, and `attempt`, `step`, `committed` and `num_alarms`."""
        found = {f"{prefix}{series}": value for series, value in self.readings().items()}
        for series, limit in self.limits().items():
            found[f"{prefix}{THRESHOLD}{series}"] = limit
        own = ("attempt", self.attempt), ("step", self.step), ("committed", int(self.committed))
        for name, number in (*own, ("num_alarms", len(self.alarms))):
            found[f"{prefix}{name}"] = number
        return found

    def alarm_lines(self) -> list[str]:
        """The alarms in words, a line each, with what the values were judged by."""
        lines = [
            f"{alarm.kind} on {one_line(alarm.series, 200)} at step {alarm.step}: {alarm.value:.6g}"
            + (f", threshold {alarm.threshold:.6g}" if np.isfinite(alarm.threshold) else "")
            + f" ({alarm.detector}; since step {alarm.onset_step})"
            for alarm in self.alarms[:MAX_ALARMS]
        ]
        more = len(self.alarms) - len(lines)
        return [*lines, f"and {more} more"] if more else lines


@dataclass(frozen=True, kw_only=True, slots=True)
class MirroredNotice:
    """A decision, as people are told of it; see `MirroredStep` for what they share."""

    attempt: int
    step: int
    time_secs: float
    notice: "Notice"


Mirrored = MirroredStep | MirroredNotice


def encodable(text: str) -> str:
    """A text without what UTF-8 cannot encode.

    >>> encodable("a" + chr(0xD800) + "b")
    'a?b'
    """
    return text.encode("utf-8", "replace").decode()
