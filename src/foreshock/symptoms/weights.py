"""Whether weights moved further than their updates moved them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from foreshock.core.case import REFERENCE_STEPS, Case
from foreshock.core.detector import AlarmKind
from foreshock.core.looking import graded_ratio, scopes_of
from foreshock.core.names import PARAM_NORM, UPDATE_NORM, series_name, split_series
from foreshock.core.symptom import Look, Symptom

_LEAD_STEPS = 10
"""Weights may have changed before anything is seen to move; they are read every 10 steps."""


class _Move(NamedTuple):
    """A weight norm between two readings; `excess` over what its updates came to, NaN if none."""

    series: str
    before: int
    step: int
    old: float
    new: float
    moved: float
    excess: float

    @property
    def share(self) -> float:
        """By how much it moved, of the smaller of both norms."""
        least = min(abs(self.old), abs(self.new))
        return abs(self.new - self.old) / least if least > 0 else math.inf


@dataclass(frozen=True, kw_only=True)
class Weights(Look):
    """Weight norms that moved, against the updates in between, whole and by module group.

    `| ||w'|| - ||w|| | <= ||w' - w|| <= sum of ||update||` over the steps in between: a norm
    that moved by more was moved by something else. Looked for from 10 steps before the onset
    on, among norms that moved by `share` of themselves and by ten times what they moved by
    at most before, and among those that raised an alarm; where updates are read at some steps
    only, each that is missing counts as their mean. The part says more than the whole: the group
    that moved furthest beyond its updates speaks. Without updates to compare with, only an alarm
    tells of a jump, to the degree 0.7.

    Whether updates moved the weights is asked only where a norm moved. No answer without a
    reading of a weight norm since the onset.

    Usual: norms jump in one episode in twenty, of memory or a wrong checkpoint; where one moved,
    updates had moved it in most.

    Reference: Dixit et al. (2021), "Silent Data Corruptions at Scale",
    https://arxiv.org/abs/2102.11245; the triangle inequality.

    Args:
        excess: over the updates, 3; update norms are of a sample, and up to 65 % off.
        share: of the norm, 0.02. Our choice: fp16 weights round norms to 1e-3.
        times: 10, as in `detectors/norm_jump`.
    """

    name: ClassVar[str] = "weights"
    usual: ClassVar[Mapping[str, float]] = {
        "weight_jumped": 0.01,
        "weights_moved_by_updates": 0.8,
    }
    excess: float = 3.0
    share: float = 0.02
    times: float = 10.0

    def look(self, case: Case) -> Iterable[Symptom]:
        moves: list[_Move] = []
        measured = False
        alarmed = _alarmed(case)
        for series in scopes_of(case, PARAM_NORM.name):
            found = self._moves(case, series, alarmed)
            measured |= found is not None
            moves += found or []
        if not moves:
            if measured:
                said = "no weight norm has jumped"
                yield Symptom(name="weight_jumped", degree=0.0, statement=said)
            return
        known = [move for move in moves if not math.isnan(move.excess)]
        one = max(
            known or moves, key=lambda move: (move.excess, move.share) if known else move.share
        )
        readings = case.timeline.readings(one.series, one.before, one.before)
        readings += case.timeline.readings(one.series, one.step, one.step)
        said = (
            f"{one.series} went from {one.old:.4g} to {one.new:.4g} between steps {one.before} "
            f"and {one.step}"
        )
        if not known:
            yield Symptom(
                name="weight_jumped",
                degree=0.7,
                statement=f"{said}; its updates are not measured",
                readings=tuple(readings),
            )
            return
        beyond = graded_ratio(one.excess, self.excess / 1.5, self.excess * 1.5)
        said += ", and all updates since came to " if beyond >= 0.5 else ", as its updates since ("
        said += f"{one.moved:.3g}" if beyond >= 0.5 else f"{one.moved:.3g}) can explain"
        for name, degree in (("weight_jumped", beyond), ("weights_moved_by_updates", 1 - beyond)):
            yield Symptom(name=name, degree=degree, statement=said, readings=tuple(readings))

    def _moves(self, case: Case, series: str, alarmed: set[tuple[str, int]]) -> list[_Move] | None:
        """What a norm moved by, where that stands out; None if it was not read since the onset."""
        line, onset = case.timeline, case.onset_step
        steps = line.steps_of(series, onset - 2 * REFERENCE_STEPS, None)
        values = line.values(series, onset - 2 * REFERENCE_STEPS, None)
        steps, values = steps[np.isfinite(values)], values[np.isfinite(values)]
        is_alarmed = any(name == series for name, _ in alarmed)
        if len(steps) < (2 if is_alarmed else 5) or steps[-1] < onset:
            return None
        with np.errstate(all="ignore"):
            rates = np.abs(np.diff(values)) / np.diff(steps)
        found: list[_Move] = []
        for row in range(1, len(steps)):
            if steps[row] < onset - _LEAD_STEPS:
                continue
            before, now = int(steps[row - 1]), int(steps[row])
            old, new = float(values[row - 1]), float(values[row])
            usual = float(rates[: row - 1].max(initial=0.0)) * (now - before)
            least = max(self.share * abs(old), self.times * usual)
            out = abs(new - old) > least and row > 3
            if out or (series, now) in alarmed:
                moved, excess = _against_updates(case, series, before, now, abs(new - old))
                if math.isnan(excess) and (series, now) not in alarmed:
                    continue
                found.append(_Move(series, before, now, old, new, moved, excess))
        return found


def _alarmed(case: Case) -> set[tuple[str, int]]:
    """Series and steps at which a weight norm was reported to have jumped."""
    return {
        (alarm.series, alarm.step)
        for alarm in case.alarms
        if alarm.signal == PARAM_NORM.name
        and alarm.kind is AlarmKind.DISCONTINUITY
        and abs(alarm.value) + abs(alarm.baseline) < math.inf
    }


def _against_updates(
    case: Case, series: str, before: int, now: int, change: float
) -> tuple[float, float]:
    """What the updates between two readings came to, and how far the change goes beyond it."""
    updates = case.timeline.values(
        series_name(UPDATE_NORM.name, split_series(series)[1]), before + 1, now
    )
    updates = updates[np.isfinite(updates)]
    if not len(updates):
        return math.nan, math.nan
    moved = float(updates.mean()) * (now - before)
    return moved, change / moved if moved > 0 else math.inf
