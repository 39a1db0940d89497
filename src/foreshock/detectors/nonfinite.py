"""Alarm on every NaN and every infinity."""

import math
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.detector import Alarm, AlarmKind, Column, ScalarDetector, Threshold


@dataclass(frozen=True, kw_only=True)
class Nonfinite(ScalarDetector[Column]):
    """Alarm whenever a value is NaN or infinite, from the very first step.

    There is no threshold to trade: a non-finite loss or gradient is acted on at
    once. Needs no warm-up. The onset is the first step of the unbroken run of
    non-finite values.

    >>> import numpy as np
    >>> rule = Nonfinite()
    >>> values = np.array([[1.0], [np.nan], [np.inf], [1.0]])
    >>> _, alarms = rule.update(rule.init(["loss/global"]), np.arange(4), values)
    >>> [(alarm.step, alarm.onset_step) for alarm in alarms]
    [(1, 1), (2, 1)]

    No source: our choice, because every other rule must keep such values out of its
    baseline, so one rule has to speak for them.
    """

    name: ClassVar[str] = "nonfinite"
    watches: tuple[str, ...] = ("loss", "grad_norm", "param_norm", "activation_norm")
    every_scope: bool = True

    def start(self, series: str) -> Column:
        return Column(series)

    def see(self, column: Column, step: int, value: float) -> Alarm | None:
        if math.isfinite(value):
            column.excursion_start = None
            return None
        if column.excursion_start is None:
            column.excursion_start = step
        return Alarm(
            kind=AlarmKind.NONFINITE,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=column.excursion_start,
            value=value,
        )

    def threshold(self, column: Column) -> Threshold:
        return Threshold(baseline=math.nan, limit=math.inf, steps_until_ready=0)
