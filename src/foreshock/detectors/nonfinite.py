"""Alarm on every NaN and every infinity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foreshock.core.detector import Alarm, AlarmKind, Detector, Steps, Threshold, Values


@dataclass(slots=True)
class NonfiniteState:
    """Which series are in a run of non-finite values.

    Attributes:
        series: `signal/scope` of each, `[S]`.
        starts: first step of the present run, None where the last value was finite, `[S]`.
        num_open: how many are in one.
    """

    series: list[str]
    starts: list[int | None]
    num_open: int = 0


@dataclass(frozen=True, kw_only=True)
class Nonfinite(Detector):
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

    def init(self, series: Sequence[str]) -> NonfiniteState:
        return NonfiniteState(list(series), [None] * len(series))

    def update(
        self, state: NonfiniteState, steps: Steps, values: Values
    ) -> tuple[NonfiniteState, list[Alarm]]:
        if values.shape != (len(steps), len(state.series)):
            raise ValueError(
                f"{self.name}: values have shape {values.shape}, expected "
                f"({len(steps)} steps, {len(state.series)} series)"
            )
        one = values.size == 1
        fine = math.isfinite(values.item()) if one else bool(np.isfinite(values).all())
        if not state.num_open and fine:
            return state, []
        return state, self._runs(state, steps, values)

    def update_step(
        self, state: NonfiniteState, step: int, row: list[float]
    ) -> tuple[NonfiniteState, list[Alarm]]:
        # One infinity or NaN makes the sum one; a sum that overflows is only looked at closer.
        if not state.num_open and math.isfinite(sum(row)):
            return state, []
        return self.update(state, np.array([step], np.int64), np.array([row], np.float64))

    def _runs(self, state: NonfiniteState, steps: Steps, values: Values) -> list[Alarm]:
        """The alarms of a block that has some, or ends a run."""
        if not len(steps):
            return []
        open_now = np.array([start is not None for start in state.starts])
        touched = np.flatnonzero(open_now | ~np.isfinite(values).all(axis=0))
        finite = np.isfinite(values[:, touched])
        rows = np.where(finite, np.arange(1, len(steps) + 1)[:, None], 0)
        first_rows = np.maximum.accumulate(rows, axis=0)  # of the run that a value lies in
        places = touched.tolist()
        before = list(state.starts)
        alarms: list[Alarm] = []
        for row, index in np.argwhere(~finite).tolist():
            start, first = before[places[index]], int(first_rows[row, index])
            onset = int(steps[first]) if first or start is None else start
            state.starts[places[index]] = onset
            alarms.append(
                Alarm(
                    kind=AlarmKind.NONFINITE,
                    detector=self.name,
                    series=state.series[places[index]],
                    step=int(steps[row]),
                    onset_step=onset,
                    value=float(values[row, places[index]]),
                )
            )
        for index in np.flatnonzero(finite[-1]).tolist():
            state.starts[places[index]] = None
        state.num_open = len(state.starts) - state.starts.count(None)
        return alarms

    def thresholds(self, state: NonfiniteState) -> list[Threshold]:
        return [Threshold(baseline=math.nan, limit=math.inf, steps_until_ready=0)] * len(
            state.series
        )
