"""What the optimizer holds: its moments, its count, and the updates that come of them."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foreshock.core.case import REFERENCE_STEPS, Case
from foreshock.core.looking import (
    finite,
    graded,
    graded_ratio,
    medians_of_few,
    past_of,
    scopes_of,
)
from foreshock.core.names import (
    FIRST_MOMENT_NORM,
    GRAD_RMS_TO_EPS,
    NUM_NONFINITE_MOMENTS,
    NUM_NONFINITE_MOMENTS_EXACT,
    RMS_T,
    SECOND_MOMENT_RMS,
    UPDATE_RATIO,
    series_name,
    split_series,
)
from foreshock.core.reading import Reading
from foreshock.core.symptom import Look, Symptom

_COUNT = "num_updates/global"
_FRESH_STEPS = 3
_SETTLED = 1.5
"""By how much updates may fall in 25 steps and still tell what is usual."""
_YOUNG_STEPS = 50
"""A run's first steps, in which weights grow and updates per weight fall by multiples."""


class _Found(NamedTuple):
    """The strongest among several series: its degree, and where it stood."""

    degree: float
    series: str
    step: int
    value: float
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Optimizer(Look):
    """Moments, count and updates of an optimizer with two moments, whole and by module group.

    Looked at from `lead_steps` before the onset on, against the 50 steps before that.

    RMS_t rose: in any group, above what StableAdamW's authors saw before spikes, and above its
    own past. First moment grew: that of the whole, or of a quarter of the groups, up to the
    onset, at an ordinary gradient norm, while the second stayed level. Second moment fell: in any
    group, by more than it was falling before. Update like fresh: in the steps around the onset the
    update's root mean square is about the learning rate, as in Adam's first update, which divides
    each gradient by itself; four times less is usual. Needs the fact `num_parameters`, or the
    run's own first update. Near epsilon: a group's gradients come to no more than some epsilons.
    Collapsed: the update, per unit of rate, was far smaller at some time in the 100 steps up to
    now than in the half before, and by more than it was falling then, as young runs' updates do:
    vanishing gradients, epsilon, or a scale.

    Usual: moments follow any jump of the gradient for some steps, so that RMS_t rises in half of
    all episodes; fallen second moments, fresh updates and counts are of lost or damaged state.

    Args:
        rms_t: 2.3 (Wortsman et al. 2023, section 3.4).
        first_ratio: 1.5: a doubled first moment with a flat second is the Marin 32B signature.
        second_ratio: 2: with a beta2 of 0.95 no second moment falls as far in 20 steps.
        epsilons: 10: the square root of the second moment no longer rules the quotient.
        collapse: 3.
        noise_z: robust deviations that rise in RMS_t or the first moment must be, as groups of
            few weights are noisy: 3 counts nothing, 6 in full.
        lead_steps: 8 (SIGNATURES: a stale second moment leads by 1 to 8 steps).
    """

    name: ClassVar[str] = "optimizer"
    usual: ClassVar[Mapping[str, float]] = {
        "rms_t_rose": 0.45,
        "first_moment_grew": 0.12,
        "second_moment_fell": 0.1,
        "moments_nonfinite": 0.02,
        "update_count_fell": 0.01,
        "update_like_fresh": 0.03,
        "gradient_near_epsilon": 0.08,
        "update_collapsed": 0.08,
    }
    rms_t: float = 2.3
    first_ratio: float = 1.5
    second_ratio: float = 2.0
    epsilons: float = 10.0
    collapse: float = 3.0
    noise_z: tuple[float, float] = (3.0, 6.0)
    lead_steps: int = 8

    def look(self, case: Case) -> Iterable[Symptom]:
        yield from self._rms_t(case)
        yield from self._first(case)
        yield from self._second(case)
        yield from _nonfinite(case)
        yield from self._count(case)
        yield from self._fresh(case)
        yield from self._epsilon(case)
        yield from self._collapsed(case)

    def _rms_t(self, case: Case) -> Iterable[Symptom]:
        since = case.onset_step - self.lead_steps
        found: list[_Found] = []
        for series in scopes_of(case, RMS_T.name):
            past = past_of(case, series, before=since)
            steps, values = (
                case.timeline.steps_of(series, since),
                case.timeline.values(series, since),
            )
            steps, values = steps[np.isfinite(values)], finite(values)
            if past is None or len(values) == 0:
                continue
            row = int(np.argmax(values))
            value, ratio = float(values[row]), float(past.ratio(values)[row])
            degree = graded(value, 0.75 * self.rms_t, 1.25 * self.rms_t)
            degree = min(degree, graded(ratio, 1.25, 2.0))
            degree = min(degree, graded(float(past.z(values)[row]), *self.noise_z))
            found.append(_Found(degree, series, int(steps[row]), value, ratio))
        if found:
            one = max(found, key=lambda each: (each.degree, each.value))
            said = f"{one.series} rose to {one.value:.3g}, {one.ratio:.3g} times its median, at "
            said += f"step {one.step}"
            yield _symptom(case, "rms_t_rose", one, said)

    def _first(self, case: Case) -> Iterable[Symptom]:
        found: list[_Found] = []
        for series in scopes_of(case, FIRST_MOMENT_NORM.name):
            second = series_name(SECOND_MOMENT_RMS.name, split_series(series)[1])
            grown = self._grown(case, series, second)
            if grown is not None:
                found.append(grown)
        parts = sorted((one for one in found if not one.series.endswith("/global")), reverse=True)
        chosen = [one for one in found if one.series.endswith("/global")]
        if parts:
            chosen.append(parts[(len(parts) - 1) // 4])
        if chosen:
            one = max(chosen)
            said = f"{one.series} was {one.ratio:.3g} times its median around step {one.step}, "
            said += "with its second moment level" if one.degree >= 0.5 else "or its second moved"
            yield _symptom(case, "first_moment_grew", one, said)

    def _grown(self, case: Case, series: str, second: str) -> _Found | None:
        """Where a first moment was largest while the second stood as ever."""
        since = case.onset_step - self.lead_steps
        until = case.onset_step - (0 if _gradient_is_calm(case) else 1)
        past, level = (past_of(case, one, before=since) for one in (series, second))
        steps = case.timeline.steps_of(series, since, until)
        common = case.timeline.steps_of(second, since, until)
        kept, of_first, of_second = np.intersect1d(steps, common, return_indices=True)
        if past is None or level is None or len(kept) == 0:
            return None
        values = medians_of_few(case.timeline.values(series, since, until)[of_first])
        beside = case.timeline.values(second, since, until)[of_second]
        first, other = past.ratio(values), medians_of_few(level.ratio(beside))
        noise = past.z(values)
        best: _Found | None = None
        for row, (grown, still) in enumerate(zip(first.tolist(), other.tolist(), strict=True)):
            apart = max(still, 1 / still) if 0 < still < math.inf else math.inf
            degree = graded_ratio(grown, self.first_ratio / 1.25, self.first_ratio * 1.25)
            degree *= graded(apart, 1.4, 1.15) * graded(float(noise[row]), *self.noise_z)
            step = int(kept[min(row + 1, len(kept) - 1)])
            one = _Found(degree, series, step, grown * past.median, grown)
            if math.isfinite(grown) and (
                best is None or (degree, grown) > (best.degree, best.ratio)
            ):
                best = one
        return best

    def _second(self, case: Case) -> Iterable[Symptom]:
        since = case.onset_step - self.lead_steps
        found: list[_Found] = []
        for series in scopes_of(case, SECOND_MOMENT_RMS.name):
            past = past_of(case, series, before=since)
            steps, values = (
                case.timeline.steps_of(series, since),
                case.timeline.values(series, since),
            )
            steps, values = steps[np.isfinite(values)], finite(values)
            if past is None or len(values) == 0 or past.median <= 0:
                continue
            row = int(np.argmin(values))
            ratio = float(past.ratio(values)[row])
            half = len(past.values) // 2
            early, late = (
                float(np.median(one)) for one in (past.values[:half], past.values[half:])
            )
            falling = max(early / late, 1.0) if late > 0 else math.inf
            fell = math.inf if ratio <= 0 else 1 / ratio / falling
            degree = graded_ratio(fell, self.second_ratio / 1.4, self.second_ratio * 1.4)
            found.append(_Found(degree, series, int(steps[row]), float(values[row]), ratio))
        if found:
            one = max(found, key=lambda each: (each.degree, -each.ratio))
            said = (
                f"{one.series} stood at {one.value:.4g} at step {one.step}, {one.ratio:.3g} times "
            )
            said += "its median before"
            yield _symptom(case, "second_moment_fell", one, said)

    def _count(self, case: Case) -> Iterable[Symptom]:
        told = case.timeline.readings(_COUNT, case.onset_step - REFERENCE_STEPS)
        told = [one for one in told if math.isfinite(one.value)]
        if len(told) < 2 or told[-1].step < case.onset_step:
            return
        for before, after in itertools.pairwise(told):
            if after.value < before.value:
                said = f"the optimizer's count of updates fell from {before.value:.0f} to "
                said += f"{after.value:.0f} at step {after.step}"
                yield Symptom(
                    name="update_count_fell", degree=1.0, statement=said, readings=(before, after)
                )
                return
        said = f"the optimizer's count of updates never fell; it stands at {told[-1].value:.0f}"
        yield Symptom(name="update_count_fell", degree=0.0, statement=said, readings=(told[-1],))

    def _fresh(self, case: Case) -> Iterable[Symptom]:
        full = _fresh_norm(case)
        rates = _per_rate(case, "update_norm/global")
        if full is None or rates is None:
            return
        steps, norms = rates
        onset = case.onset_step
        before = norms[(steps >= onset - REFERENCE_STEPS) & (steps < onset - _FRESH_STEPS)]
        around = (steps >= onset - _FRESH_STEPS) & (steps < onset + _FRESH_STEPS)
        if len(before) < 5 or not around.any():
            return
        usual = float(np.median(before)) / full
        if usual > 0.6:  # an optimizer whose updates are always as large
            return
        row = int(np.argmax(np.where(around, norms, -np.inf)))
        size = float(norms[row]) / full
        apart = max(size, 1 / size) if size > 0 else math.inf
        degree = graded_ratio(apart, 1.6, 1.2)
        said = f"the update of step {steps[row]} was {size:.3g} times the first of a fresh Adam, "
        said += f"usually {usual:.3g}"
        readings = case.timeline.readings("update_norm/global", int(steps[row]), int(steps[row]))
        yield Symptom(
            name="update_like_fresh", degree=degree, statement=said, readings=tuple(readings)
        )

    def _epsilon(self, case: Case) -> Iterable[Symptom]:
        found: list[_Found] = []
        for series in scopes_of(case, GRAD_RMS_TO_EPS.name):
            past = past_of(case, series)
            if past is not None and past.median > 0:
                degree = graded_ratio(past.median, 3 * self.epsilons, self.epsilons / 3)
                last = case.timeline.steps_of(series, None, case.onset_step - 1)[-1]
                found.append(_Found(degree, series, int(last), past.median, 1.0))
        if found:
            one = min(found, key=lambda each: each.value)
            said = f"{one.series} stood at {one.value:.3g} epsilons before the onset, the least of "
            said += "all groups"
            yield _symptom(case, "gradient_near_epsilon", one, said)

    def _collapsed(self, case: Case) -> Iterable[Symptom]:
        found: list[_Found] = []
        for series in scopes_of(case, UPDATE_RATIO.name):
            rates = _per_rate(case, series)
            if rates is None:
                continue
            steps, sizes = rates
            since_step = max(case.onset_step - 2 * REFERENCE_STEPS, _YOUNG_STEPS)
            start = np.searchsorted(steps, since_step)
            middle = np.searchsorted(steps, case.onset_step - REFERENCE_STEPS)
            before, since = sizes[start:middle], sizes[middle:]
            if len(before) < 10 or len(since) < 5 or float(np.median(before)) <= 0:
                continue
            lows = medians_of_few(since, 5)
            row = int(np.argmin(lows))
            half = len(before) // 2
            early, late = (float(np.median(one)) for one in (before[:half], before[half:]))
            if late <= 0 or early > _SETTLED * late:
                continue
            ratio = float(lows[row]) / late
            fell = math.inf if ratio <= 0 else 1 / ratio / max(early / late, 1.0) ** 2
            degree = graded_ratio(fell, self.collapse / 1.5, self.collapse * 1.5)
            step = int(steps[middle + row + 2])
            found.append(_Found(degree, series, step, float(lows[row]), ratio))
        if found:
            one = max(found, key=lambda each: (each.degree, -each.ratio))
            said = (
                f"{one.series}, per unit of the learning rate, was {one.ratio:.3g} times what it "
            )
            said += f"had been, around step {one.step}"
            yield _symptom(case, "update_collapsed", one, said)


def _gradient_is_calm(case: Case) -> bool:
    """Whether the gradient norm of the onset is as usual; so, too, where it is not read."""
    jump = case.jump("grad_norm/global", case.onset_step)
    return jump is None or (jump.z < 6 or jump.ratio < 1.5)


def _symptom(case: Case, name: str, one: _Found, statement: str) -> Symptom:
    readings = case.timeline.readings(one.series, one.step, one.step)
    return Symptom(name=name, degree=one.degree, statement=statement, readings=tuple(readings))


def _nonfinite(case: Case) -> Iterable[Symptom]:
    """Whether a moment is NaN or Inf; its own norm tells it too."""
    since = case.onset_step - REFERENCE_STEPS
    counts = [
        reading
        for signal in (NUM_NONFINITE_MOMENTS, NUM_NONFINITE_MOMENTS_EXACT)
        for reading in case.timeline.readings(series_name(signal.name), since)
        if math.isfinite(reading.value)
    ]
    broken: list[Reading] = [reading for reading in counts if reading.value > 0]
    if broken:
        one = broken[0]
        said = f"the moments of {one.value:.0f} parameter(s) are NaN or Inf at step {one.step}"
        yield Symptom(name="moments_nonfinite", degree=1.0, statement=said, readings=(one,))
    elif counts and counts[-1].step >= case.onset_step:
        said = "the optimizer's moments are finite"
        yield Symptom(name="moments_nonfinite", degree=0.0, statement=said, readings=(counts[-1],))


def _per_rate(case: Case, series: str) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Steps, and a series over the learning rate, of updates that were made; both `[T]`."""
    since = case.onset_step - 2 * REFERENCE_STEPS
    line = case.timeline
    steps, values = (
        read(series, since, None, committed_only=True) for read in (line.steps_of, line.values)
    )
    rated, rates = (
        read("lr/global", since, None, committed_only=True) for read in (line.steps_of, line.values)
    )
    kept, of_values, of_rates = np.intersect1d(steps, rated, return_indices=True)
    with np.errstate(all="ignore"):
        sizes = values[of_values] / rates[of_rates]
    good = np.isfinite(sizes) & (rates[of_rates] > 0)
    return (kept[good], sizes[good]) if good.any() else None


def _fresh_norm(case: Case) -> float | None:
    """The norm of Adam's first update over the learning rate: the root of the number of weights.

    None where neither that number nor the run's first update is known.
    """
    count = case.facts.get("num_parameters")
    if isinstance(count, int) and count > 0:
        return math.sqrt(count)
    line = case.timeline
    counted = line.steps_of(_COUNT)[line.values(_COUNT) == 1]
    if len(counted) == 0 or counted[0] >= case.onset_step - REFERENCE_STEPS:
        return None
    first = int(counted[0])
    norm, rate = (line.values(one, first, first) for one in ("update_norm/global", "lr/global"))
    if len(norm) == 0 or len(rate) == 0 or not 0 < float(rate[0]) < math.inf:
        return None
    found = float(norm[0]) / float(rate[0])
    return found if 0 < found < math.inf else None
