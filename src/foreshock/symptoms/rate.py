"""What the learning rate did, and whether update and gradient went with it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshock.core.case import REFERENCE_STEPS, Case
from foreshock.core.looking import finite, graded, graded_ratio
from foreshock.core.symptom import Look, Symptom

_RATE, _UPDATE, _GRADIENT = "lr/global", "update_ratio/global", "grad_norm/global"


class _Break(NamedTuple):
    """The rate left its own course between two readings."""

    before: int
    step: int
    old: float
    expected: float
    now: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Rate(Look):
    """The learning rate around the onset, and what followed it.

    Jumped: as `Case.rate_jump`; one more than 10 steps before the onset counts less. Rising: in
    most of the 50 steps up to the onset it rose, as in a warm-up. Off schedule: between two
    readings it left the course of those before, down or up; or, having fallen, it stands still.
    A schedule may do so on purpose, so that this counts in full only at a start of the process,
    and not at all where an intervention had just changed the rate. Update follows: the update
    ratio changed by the factor of the rate; asked only where either changed. Gradient grew: the
    median norm of the later half of the 50 readings before the onset over that of the earlier.

    Usual: rates that jump are rare, warm-ups last some percent of a run, but a third of the
    reported instabilities fall into them; a gradient that grows before is the mark of slow ones.

    Args:
        jump: 1.5 counts for half, less is no jump; 2 in full.
        near_steps: 10; SIGNATURES: the loss follows a raised rate in 3 to 60 steps.
        growth: of the gradient norm, 2.
        off: share by which the rate misses its course, 0.2; no schedule bends as sharply.
    """

    name: ClassVar[str] = "rate"
    usual: ClassVar[Mapping[str, float]] = {
        "rate_jumped": 0.1,
        "rate_rising": 0.25,
        "rate_off_schedule": 0.1,
        "update_follows_rate": 0.25,
        "gradient_grew_before": 0.1,
    }
    jump: float = 1.5
    near_steps: int = 10
    growth: float = 2.0
    off: float = 0.2

    def look(self, case: Case) -> Iterable[Symptom]:
        yield from self._of_rate(case)
        yield from self._follows(case)
        norms = finite(case.timeline.values(_GRADIENT, None, case.onset_step - 1))
        norms = norms[-REFERENCE_STEPS:]
        if len(norms) >= REFERENCE_STEPS // 2:
            half = len(norms) // 2
            early, late = float(np.median(norms[:half])), float(np.median(norms[half:]))
            growth = late / early if early > 0 else (math.inf if late > 0 else 1.0)
            before = case.timeline.readings(_GRADIENT, None, case.onset_step - 1)[-len(norms) :]
            yield Symptom(
                name="gradient_grew_before",
                degree=graded_ratio(growth, 0.75 * self.growth, self.growth / 0.75),
                statement=f"the median gradient norm went from {early:.4g} to {late:.4g} in the "
                f"{len(norms)} readings before the onset",
                readings=(before[0], before[-1]),
            )

    def _of_rate(self, case: Case) -> Iterable[Symptom]:
        onset = case.onset_step
        steps = case.timeline.steps_of(_RATE, onset - REFERENCE_STEPS, onset)
        rates = case.timeline.values(_RATE, onset - REFERENCE_STEPS, onset)
        steps, rates = steps[np.isfinite(rates)], finite(rates)
        if len(rates) < 5 or rates.min() < 0:
            return
        ends = case.timeline.readings(_RATE, int(steps[0]), int(steps[0]))
        ends += case.timeline.readings(_RATE, int(steps[-1]), int(steps[-1]))
        jumped = case.rate_jump
        if jumped is None:
            said = f"the learning rate did not jump: from {rates[0]:.4g} to {rates[-1]:.4g} in the "
            said += f"{steps[-1] - steps[0]} steps before the onset"
            yield Symptom(name="rate_jumped", degree=0.0, statement=said, readings=tuple(ends))
        else:
            near = onset - jumped.step <= self.near_steps
            degree = graded_ratio(jumped.ratio, self.jump**2 / 2, 2.0) * (1.0 if near else 0.75)
            said = f"the learning rate rose {jumped.ratio:.3g} times in one step, from "
            said += f"{jumped.before:.4g} to {jumped.after:.4g} at step {jumped.step}"
            said += "" if near else f", {onset - jumped.step} steps before the onset"
            yield Symptom(
                name="rate_jumped", degree=degree, statement=said, readings=jumped.readings
            )
        rises = np.diff(rates)
        gain = (rates[-1] - rates[0]) / rates[-1] if rates[-1] > 0 else 0.0
        share = float(np.mean(rises > 0))
        at_once = float(rises.max()) / (rates[-1] - rates[0]) if rates[-1] > rates[0] else 1.0
        degree = graded(share, 0.5, 0.8) * graded(float(gain), 0.005, 0.02)
        yield Symptom(
            name="rate_rising",
            degree=degree * graded(at_once, 0.9, 0.6),
            statement=f"the learning rate went from {rates[0]:.4g} to {rates[-1]:.4g} up to the "
            f"onset, rising in {share:.0%} of the steps",
            readings=tuple(ends),
        )
        yield self._off_schedule(case)

    def _off_schedule(self, case: Case) -> Symptom:
        name = "rate_off_schedule"
        found = self._break(case)
        if found is None:
            said = "the learning rate kept to its course"
            return Symptom(name=name, degree=0.0, statement=said)
        own = ("lr", "rate")
        if any(
            found.before - 1 <= one.step <= found.step and any(word in one.action for word in own)
            for one in case.interventions
        ):
            said = f"the learning rate was changed by an intervention at step {found.before}"
            return Symptom(name=name, degree=0.0, statement=said)
        started = any(found.before - 1 <= start < found.step for start in case.starts[1:])
        missed = abs(found.now - found.expected) / max(found.expected, found.now)
        degree = graded(missed, self.off / 2, 1.5 * self.off) * (1.0 if started else 0.7)
        if found.words == "stands still":
            degree = 1.0 if started else 0.5
        readings = case.timeline.readings(_RATE, found.before, found.before)
        readings += case.timeline.readings(_RATE, found.step, found.step)
        said = f"the learning rate {found.words} at {found.now:.4g} from step {found.step} on"
        if found.words != "stands still":
            said = f"the learning rate {found.words} from {found.old:.4g} to {found.now:.4g} at "
            said += f"step {found.step}, where its course led to {found.expected:.4g}"
        said += ", at a start of the process" if started else ""
        return Symptom(name=name, degree=degree, statement=said, readings=tuple(readings))

    def _break(self, case: Case) -> _Break | None:
        """Where the rate missed its course by most, from half a reference before the onset on."""
        since = case.onset_step - REFERENCE_STEPS // 2
        steps = case.timeline.steps_of(_RATE, since - REFERENCE_STEPS, None)
        rates = case.timeline.values(_RATE, since - REFERENCE_STEPS, None)
        steps, rates = steps[np.isfinite(rates)].astype(float), finite(rates)
        if len(rates) < 6 or rates.min() < 0:
            return None
        with np.errstate(all="ignore"):
            slopes = np.diff(rates) / np.diff(steps)
        found: _Break | None = None
        most = 0.0
        for row in range(5, len(rates)):
            if steps[row] < since:
                continue
            usual = slopes[max(0, row - 21) : row - 1]
            width = steps[row] - steps[row - 1]
            expected = max(float(rates[row - 1] + np.median(usual) * width), 0.0)
            miss = abs(float(rates[row]) - expected)
            large = max(expected, float(rates[row]))
            bend = 4 * float(np.abs(usual - np.median(usual)).max()) * width
            if large > 0 and miss > max(self.off / 2 * large, bend) and miss / large > most:
                most = miss / large
                words = "fell" if rates[row] < expected else "rose"
                found = _Break(
                    int(steps[row - 1]), int(steps[row]), float(rates[row - 1]), expected,
                    float(rates[row]), words,
                )  # fmt: skip
        return found or _still(steps, rates, since)

    def _follows(self, case: Case) -> Iterable[Symptom]:
        jumped = case.rate_jump
        step = case.onset_step if jumped is None else jumped.step
        rate, update = (_factor(case, series, step) for series in (_RATE, _UPDATE))
        if rate is None or update is None:
            return
        moved = max(rate, 1 / rate)
        if max(moved, update, 1 / update) < self.jump:
            return
        if moved < self.jump:
            degree = graded_ratio(max(update, 1 / update), 2 * self.jump, self.jump)
            degree = min(degree, graded_ratio(moved, 1.0, self.jump))
        else:
            apart = abs(math.log(update / rate)) / math.log(moved)
            degree = graded(apart, 0.7, 0.3)
        readings = case.timeline.readings(_RATE, step, step)
        readings += case.timeline.readings(_UPDATE, step, step)
        yield Symptom(
            name="update_follows_rate",
            degree=degree,
            statement=f"at step {step} the learning rate is {rate:.3g} times what it was, the "
            f"update {update:.3g} times",
            readings=tuple(readings),
        )


def _factor(case: Case, series: str, step: int) -> float | None:
    """The median of three readings from a step on over that of the ten before it."""
    before = finite(case.timeline.values(series, step - REFERENCE_STEPS, step - 1))[-10:]
    after = finite(case.timeline.values(series, step, None, committed_only=True))[:3]
    if len(before) < 3 or len(after) == 0:
        return None
    old, new = float(np.median(before)), float(np.median(after))
    return new / old if 0 < old < math.inf and 0 < new / old < math.inf else None


def _still(steps: NDArray[np.float64], rates: NDArray[np.float64], since: int) -> _Break | None:
    """Where a rate that had always fallen stopped to, some readings ago and until now."""
    changes = np.diff(rates)
    num_still = len(changes) - int(np.flatnonzero(changes).max(initial=-1)) - 1
    start = len(rates) - 1 - num_still
    before = changes[max(0, start - 20) : start]
    fell = len(before) >= 5 and bool(np.mean(before < 0) > 0.9)
    if num_still < 5 or not fell or steps[start] < since or rates[start] <= 0:
        return None
    now = float(rates[-1])
    step = int(steps[start + 1])
    return _Break(int(steps[start]), step, now, now, now, "stands still")
