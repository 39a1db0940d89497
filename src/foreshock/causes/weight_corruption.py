"""A weight changed that no update changed: memory, a copy or a kernel failed."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foreshock.core.case import Case
from foreshock.core.cause import Cause, Evidence
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.names import PARAM_NORM, UPDATE_NORM, series_name, split_series

_SAMPLED = 3.0
"""Update norms are of a sample: up to 65 % off in a large embedding."""


@dataclass(frozen=True, kw_only=True)
class WeightCorruption(Cause):
    """Weights that moved further than their updates moved them.

    `| ||w'|| - ||w|| | <= ||w' - w|| <= sum of ||update||` over the steps in between: a norm
    that moved by more was moved by something else.

    Reference: Dixit et al. (2021), "Silent Data Corruptions at Scale",
    https://arxiv.org/abs/2102.11245; the triangle inequality.
    """

    name: ClassVar[str] = "weight_corruption"
    predicts: ClassVar[str] = "a weight norm jumps by more than the updates since moved the weights"
    contradicts: ClassVar[str] = "updates as large as the jump, or norms that moved as ever"
    settled_by: ClassVar[str] = "the same steps again from the snapshot before: no jump"
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.0

    def weigh(self, case: Case) -> list[Evidence]:
        jumps = [
            alarm
            for alarm in case.alarms
            if alarm.signal == PARAM_NORM.name
            and alarm.kind is AlarmKind.DISCONTINUITY
            and abs(alarm.value) + abs(alarm.baseline) < math.inf
        ]
        if not jumps:
            return [Evidence(statement="no weight norm has jumped", weight=-3.0)]
        # The part says more than the whole: its own norm and its own updates are smaller.
        first = min(alarm.step for alarm in jumps)
        return [self._against_updates(case, max((a for a in jumps if a.step == first), key=_share))]

    def _against_updates(self, case: Case, jump: Alarm) -> Evidence:
        scope = split_series(jump.series)[1]
        since = jump.onset_step
        updates = case.timeline.values(series_name(UPDATE_NORM.name, scope), since, jump.step)
        updates = updates[np.isfinite(updates)]
        readings = case.timeline.readings(jump.series, since - 1, since - 1)
        readings += case.timeline.readings(jump.series, jump.step, jump.step)
        said = (
            f"{jump.series} went from {jump.baseline:.4g} to {jump.value:.4g} between steps "
            f"{since - 1} and {jump.step}"
        )
        if not len(updates):
            return Evidence(statement=said, weight=1.5, readings=tuple(readings))
        # Each step that is missing moved the weights as far as the others did.
        moved = float(updates.mean()) * (jump.step - since + 1)
        if abs(jump.value - jump.baseline) > _SAMPLED * moved:
            said, weight = f"{said}, and all updates since came to {moved:.3g}", 5.0
        else:
            said, weight = f"{said}, as its updates since ({moved:.3g}) can explain", -4.0
        return Evidence(statement=said, weight=weight, readings=tuple(readings))


def _share(alarm: Alarm) -> float:
    """By how many times the norm jumped, up or down."""
    small, large = sorted((abs(alarm.value), abs(alarm.baseline)))
    return large / small if small else math.inf
