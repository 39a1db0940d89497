"""Whether only what is reported moved, and not the training."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from foreshock.core.case import Case
from foreshock.core.looking import first_broken, graded, graded_ratio, past_of
from foreshock.core.names import GRAD_NORM, LOSS, PARAM_NORM, UPDATE_RATIO, series_name
from foreshock.core.one_level import LEAST_READINGS, is_whole, one_level
from foreshock.core.standing import finite_in, reading_at
from foreshock.core.symptom import Look, Symptom

_LOSS, _NORM = series_name(LOSS.name), series_name(GRAD_NORM.name)
_WEIGHTS = series_name(PARAM_NORM.name)
_OTHERS = (_NORM, series_name(UPDATE_RATIO.name), _WEIGHTS)
_MOVED_Z = (3.5, 6.0)
_SURE = 2.0
_LARGE_ENOUGH = 0.45
"""Degree at which a loss that moved alone begins to say that it is one of the log: with it and
the usual 6 %, nothing is said of who expects it in nine of ten episodes."""
_ONCE = 3
_ASKED_STEPS = 20
_FEW = 6
_TOGETHER_STEPS = 5
_TOGETHER_WITHIN = 20
_SAME_FACTOR = (math.log(1.3), math.log(1.8))
"""A gradient norm of few steps is known to a third or so."""


@dataclass(frozen=True, kw_only=True)
class Metric(Look):
    """What speaks for an artefact of the log.

    `only_the_metric`: the loss left its range by far, or is NaN, while gradient norm, update and
    weight norm of these steps and the next are as usual and no probe found harm. A harmless
    outlier takes the gradient along, and one that is small is not asked about: the gradient need
    not show it. Not told where the loss did not move, or no gradient norm is there.
    `constant_factor`: from some step on loss or gradient norm is what it was before times one
    factor, with the same relative noise, to the last of at least five readings. A whole factor
    (or one over it) and a power of two count in full, since ranks, micro-steps and loss scales
    come in such numbers; others half.
    `scaled_together`: at once loss and gradient norm are what they were before times one and the
    same factor, as they are if the loss is summed where it was averaged; data and states that are
    new to the model move the gradient by far more than the loss.
    `exact_value`: a loss of exactly 0.0, that was not near 0 before, or a gradient norm of exactly
    1.0 several times in a row, that was not before.

    Usual: one cause of some thirty is an artefact; wrong weights and labels can leave the gradient
    as it was for a step (6 %), levels shift with the data or a normalisation (8 %), and masked
    labels give exact zeros too (3 %).

    Args:
        z: robust deviations of the loss, for a clear yes; half of them is a clear no.
        size: by which share of itself the loss moved, likewise, a fifth being a clear no.
        factor: for a clear yes; the square root of it is a clear no.

    No source: our choice, because a loss half as large again has a larger gradient, whatever it
    comes from; SIGNATURES for the exact values.
    """

    name: ClassVar[str] = "metric"
    usual: ClassVar[Mapping[str, float]] = MappingProxyType(
        {
            "only_the_metric": 0.02,
            "constant_factor": 0.08,
            "exact_value": 0.03,
            "scaled_together": 0.03,
        }
    )
    z: float = 12.0
    size: float = 0.5
    factor: float = 1.6

    def look(self, case: Case) -> Iterator[Symptom]:
        yield from self._only(case)
        found = [one for name in (_LOSS, _NORM) if (one := self._factor(case, name)) is not None]
        if found:
            yield max(found, key=lambda one: one.degree)
        yield from self._together(case)
        exact = [one for one in (_zero_loss(case), _norm_of_one(case)) if one is not None]
        if exact:
            yield max(exact, key=lambda one: one.degree)

    def _only(self, case: Case) -> Iterator[Symptom]:
        past = past_of(case, _LOSS)
        if past is None or past_of(case, _NORM) is None:
            return
        # Later the update follows its schedule, and something leaves its range by chance.
        steps, values = finite_in(case, _LOSS, case.onset_step, case.onset_step + _ASKED_STEPS)
        z, shares = np.abs(past.z(values)), np.abs(past.ratio(values) - 1)
        moved = {
            step: min(
                graded(deviations, self.z / 2, self.z), graded(share, self.size / 5, self.size)
            )
            for step, deviations, share in zip(
                steps.tolist(), z.tolist(), shares.tolist(), strict=True
            )
            if deviations >= self.z / 2
        }
        broken = first_broken(case, _LOSS)
        if broken is not None:
            moved[broken] = 1.0
        if not moved:
            return
        asked = sorted({*moved, *(step + 1 for step in moved)})
        calm = [1 - self._stirred(case, name, asked) for name in _OTHERS]
        if case.facts.get("harm"):
            calm.append(0.0)
        step = max(moved, key=lambda one: moved[one])
        loss = reading_at(case, _LOSS, step)
        norm = reading_at(case, _NORM, step)
        size = max(moved.values())
        if not norm or (size < _LARGE_ENOUGH and min(calm) >= 0.5):
            return
        yield Symptom(
            name="only_the_metric",
            degree=size * min(calm),
            statement=f"the loss was {loss[0].value:.4g} at step {step} (usually "
            f"{past.median:.4g}), and the gradient norm {norm[0].value:.4g}"
            + (", as usual" if min(calm) >= 0.5 else ""),
            readings=loss + norm,
        )

    def _together(self, case: Case) -> Iterator[Symptom]:
        pasts = [past_of(case, name) for name in (_LOSS, _NORM)]
        last = case.onset_step + _TOGETHER_WITHIN
        steps, values = finite_in(case, _LOSS, case.onset_step, last)
        if pasts[0] is None or pasts[1] is None or min(one.median for one in pasts if one) <= 0:
            return
        size = np.abs(np.log(np.maximum(pasts[0].ratio(values), 1e-300)))
        moved = np.flatnonzero(size >= math.log(self.factor) / 2)
        first = int(steps[moved[0]]) if len(moved) else case.onset_step
        factors: list[float] = []
        for name, past in zip((_LOSS, _NORM), pasts, strict=True):
            found = finite_in(case, name, first, first + _TOGETHER_STEPS - 1)[1]
            if past is None or len(found) < 2 or found.min() <= 0:
                return
            factors.append(float(np.exp(np.median(np.log(past.ratio(found))))))
        loss, norm = factors
        large = graded_ratio(max(loss, 1 / loss), math.sqrt(self.factor), self.factor)
        same = 1 - graded(abs(math.log(norm / loss)), *_SAME_FACTOR)
        yield Symptom(
            name="scaled_together",
            degree=large * same,
            statement=f"from step {first} on the loss was {loss:.3g} times, the gradient norm "
            f"{norm:.3g} times its median before",
            readings=reading_at(case, _LOSS, first) + reading_at(case, _NORM, first),
        )

    def _stirred(self, case: Case, name: str, steps: list[int]) -> float:
        """How clearly a series left its range, up or down, in any of these steps."""
        past = past_of(case, name)
        if past is None:
            return 0.0
        if (broken := first_broken(case, name)) is not None and broken <= steps[-1]:
            return 1.0
        at, values = finite_in(case, name, int(past.steps[0]), steps[-1])
        far = past.z(values)
        if name == _WEIGHTS:  # they drift: each against the one before
            far = np.diff(far, prepend=far[0])
            far -= np.median(far)
        seen = far[np.isin(at, steps)]
        if not len(seen):
            return 0.0
        # Of many steps one or two are far out by chance.
        size = np.quantile(np.abs(seen), 0.75) if len(seen) > _FEW else np.abs(seen).max()
        return graded(float(size), *_MOVED_Z)

    def _factor(self, case: Case, name: str) -> Symptom | None:
        past = past_of(case, name)
        steps, values = finite_in(case, name, case.onset_step)
        if past is None or past.median <= 0 or len(values) < LEAST_READINGS:
            return None
        ratios = np.clip(past.ratio(values), 1e-300, 1e300)
        logs = np.log(ratios)
        start, degree, factor = one_level(logs, past)
        if start is None:
            return Symptom(
                name="constant_factor",
                degree=0.0,
                statement=f"{name} did not go on at another level to the end",
            )
        factor_up = max(factor, 1 / factor)
        degree *= graded_ratio(factor_up, math.sqrt(self.factor), self.factor)
        noise = past.spread / past.median
        error = _SURE * noise * math.sqrt(1.6 / (len(values) - start) + 1.6 / len(past.steps))
        near = is_whole(factor_up, max(0.01, error))
        return Symptom(
            name="constant_factor",
            degree=degree * (1.0 if near else 0.5),
            statement=f"{name} is {factor:.4g} times what it was, from step {int(steps[start])} "
            "on, with noise as before",
            readings=reading_at(case, name, steps[start]) + reading_at(case, name, steps[-1]),
        )


def _zero_loss(case: Case) -> Symptom | None:
    past = past_of(case, _LOSS)
    steps, values = finite_in(case, _LOSS, case.onset_step)
    if past is None or not len(values):
        return None
    exact = steps[values == 0.0]
    if not len(exact):
        said = "the loss was never exactly 0"
        return Symptom(name="exact_value", degree=0.0, statement=said)
    return Symptom(
        name="exact_value",
        degree=graded_ratio(past.median, 1e-3, 1e-2),
        statement=f"the loss is exactly 0 in {len(exact)} steps from step {int(exact[0])} on, "
        f"usually {past.median:.4g}",
        readings=reading_at(case, _LOSS, exact[0]),
    )


def _norm_of_one(case: Case) -> Symptom | None:
    past = past_of(case, _NORM)
    steps, values = finite_in(case, _NORM, case.onset_step)
    if past is None or not len(values):
        return None
    _, before = finite_in(case, _NORM, int(past.steps[0]), int(past.steps[-1]))
    usual = float(np.mean(before == 1.0))
    ones = values == 1.0
    run = longest = 0
    for one in ones.tolist():
        run = run + 1 if one else 0
        longest = max(longest, run)
    said = f"the gradient norm is exactly 1 {longest} times in a row since the onset"
    return Symptom(
        name="exact_value",
        degree=graded(longest, 1, _ONCE) * (1 - graded(usual, 0.05, 0.2)),
        statement=said + (f", before in {usual:.0%} of the steps" if usual else ""),
        readings=reading_at(case, _NORM, steps[ones][0]) if longest else (),
    )
