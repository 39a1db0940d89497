"""Where the loss stands: on another level, rising slowly, dropped, near zero, or destroyed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foreshock.core.case import REFERENCE_STEPS, Case
from foreshock.core.looking import finite, graded, graded_ratio, medians_of_few, past_of
from foreshock.core.names import LOSS
from foreshock.core.stats import MAD_TO_SD
from foreshock.core.symptom import Look, Symptom

_LOSS, _GRADIENT = "loss/global", "grad_norm/global"
_BLOCKS = 6


@dataclass(frozen=True, kw_only=True)
class Level(Look):
    """The level of the loss, as medians of several readings.

    Shifted: both halves of the readings since the onset (8 or more, the last 32 at most) stand on
    one side of the median before, by nearly as much, while the gradient norm is as usual. Rising
    slowly: medians of six blocks, from 50 steps before the onset to now, rise one after
    another, no single rise being most of it. Dropped: three readings in a row lie far below the
    median, or a rule has reported a drop at a restart. Near zero: where fp32 logits leave no
    digits for the loss. At uniform: it stands at or above what the run began with, or ln of the
    vocabulary (`facts`), after it had come well below: the weights are destroyed; not asked
    where neither is known.

    Usual: most episodes are spikes or divergences; shifts and drops come with data order,
    normalisation and restarts; a model is seldom destroyed altogether.

    Args:
        shift: robust deviations of single readings, 1.5; the median of 16 of them varies by 0.3.
        gradient_ratio: 2, the gradient norm being as usual up to there.
        rise: robust deviations over the whole window, 2.5, likewise.
        drop: robust deviations of a median of three, 4.5, or 6 of fewer readings.
        zero: nats. Nanda et al. (slingshots) and SIGNATURES 6: spikes begin near 1e-7.
        uniform_share: 0.9 of the level at the start counts for half.
    """

    name: ClassVar[str] = "level"
    usual: ClassVar[Mapping[str, float]] = {
        "loss_level_shifted": 0.18,
        "loss_rising_slowly": 0.12,
        "loss_dropped": 0.06,
        "loss_near_zero": 0.03,
        "loss_at_uniform": 0.12,
    }
    shift: float = 1.5
    gradient_ratio: float = 2.0
    rise: float = 2.5
    drop: float = 4.5
    zero: float = 1e-4
    uniform_share: float = 0.9

    def look(self, case: Case) -> Iterable[Symptom]:
        yield from self._shifted(case)
        yield from self._rising(case)
        yield from self._dropped(case)
        yield from self._near_zero(case)
        yield from self._at_uniform(case)

    def _shifted(self, case: Case) -> Iterable[Symptom]:
        past, gradient = past_of(case, _LOSS), past_of(case, _GRADIENT)
        values = finite(case.timeline.values(_LOSS, case.onset_step, None))[-32:]
        norms = finite(case.timeline.values(_GRADIENT, case.onset_step, None))[-32:]
        if past is None or gradient is None or len(values) < 8 or len(norms) < 4:
            return
        half = len(values) // 2
        middles = np.array([np.median(part) for part in (values[:half], values[half:])])
        early, late = past.z(middles).tolist()
        low, high = sorted((abs(early), abs(late)))
        moved = low if early * late > 0 else 0.0
        level = graded(low / high if high else 0.0, 0.3, 0.6)
        ratio = float(np.median(gradient.ratio(norms)))
        calm = graded_ratio(
            max(ratio, 1e-9), 1.25 * self.gradient_ratio, 0.75 * self.gradient_ratio
        )
        degree = graded(moved, 0.67 * self.shift, 1.33 * self.shift) * level * calm
        said = (
            f"the loss stands at {np.median(values):.4g} since the onset, before at "
            f"{past.median:.4g}; the gradient norm is {ratio:.3g} times its median"
        )
        yield _symptom(case, "loss_level_shifted", degree, said)

    def _rising(self, case: Case) -> Iterable[Symptom]:
        values = finite(case.timeline.values(_LOSS, case.onset_step - REFERENCE_STEPS, None))
        if len(values) < 5 * _BLOCKS:
            return
        blocks = np.array_split(values, _BLOCKS)
        middles = np.array([np.median(block) for block in blocks])
        with np.errstate(all="ignore"):
            around = np.concatenate(
                [block - middle for block, middle in zip(blocks, middles, strict=True)]
            )
            spread = MAD_TO_SD * float(np.median(np.abs(around)))
            spread = max(spread, 0.01 * abs(float(middles[0])), 1e-12)
            steps = np.diff(middles)
            total = float(middles[-1] - middles[0])
        most = float(steps.max()) / total if total > 0 else 1.0
        upward = float(np.mean(steps > 0))
        degree = (
            graded(total / spread, 0.6 * self.rise, 1.4 * self.rise)
            * graded(upward, 0.5, 0.8)
            * graded(most, 0.8, 0.5)
        )
        said = (
            f"the loss went from {middles[0]:.4g} to {middles[-1]:.4g} in {len(values)} readings, "
            f"at most {max(float(steps.max()), 0.0):.3g} from one sixth of them to the next"
        )
        yield _symptom(case, "loss_rising_slowly", degree, said)

    def _dropped(self, case: Case) -> Iterable[Symptom]:
        told = [
            alarm
            for alarm in (*case.advisories, *case.alarms)
            if alarm.signal == LOSS.name and alarm.detector == "restart_discontinuity"
        ]
        for alarm in told:
            if alarm.value < alarm.baseline:
                said = (
                    f"the loss dropped from {alarm.baseline:.4g} to {alarm.value:.4g} after the "
                    f"restart at step {alarm.onset_step}"
                )
                yield _symptom(case, "loss_dropped", 1.0, said, alarm.step)
                return
        past = past_of(case, _LOSS)
        steps = case.timeline.steps_of(_LOSS, case.onset_step, None)
        values = case.timeline.values(_LOSS, case.onset_step, None)
        steps, values = steps[np.isfinite(values)], finite(values)
        if past is None or len(values) == 0:
            return
        few = len(values) < 3
        lowest = medians_of_few(past.z(values), 1 if few else 3)
        row = int(np.argmin(lowest))
        down = -float(lowest[row])
        limit = self.drop * (4 / 3 if few else 1.0)
        degree = graded(down, 0.67 * limit, 1.33 * limit)
        place = row if few else row + 1
        said = (
            f"the loss fell to {values[place]:.4g} at step {steps[place]}, usually "
            f"{past.median:.4g}"
            if degree >= 0.5
            else f"the loss has not dropped: it fell {max(down, 0):.3g} deviations at most"
        )
        yield _symptom(case, "loss_dropped", degree, said, int(steps[place]))

    def _near_zero(self, case: Case) -> Iterable[Symptom]:
        past = past_of(case, _LOSS)
        if past is None or past.values.min() < 0:
            return
        degree = 1.0 if past.median == 0 else graded_ratio(past.median, 10 * self.zero, self.zero)
        said = f"the loss stood at {past.median:.3g} before the onset"
        yield _symptom(case, "loss_near_zero", degree, said)

    def _at_uniform(self, case: Case) -> Iterable[Symptom]:
        reference = _uniform(case)
        past = past_of(case, _LOSS)
        steps = case.timeline.steps_of(_LOSS, case.onset_step, None)
        values = case.timeline.values(_LOSS, case.onset_step, None)
        steps, values = steps[np.isfinite(values)], finite(values)
        if reference is None or past is None or len(values) == 0:
            return
        level, words = reference
        if past.median > 0.8 * level:
            return
        now = float(np.median(values[-3:]))
        off = 1 - self.uniform_share
        degree = graded(now / level, 1 - 2 * off, 1.0)
        said = f"the loss stands at {now:.4g}, while {words} is {level:.4g}"
        yield _symptom(case, "loss_at_uniform", degree, said, int(steps[-1]))


def _uniform(case: Case) -> tuple[float, str] | None:
    """The loss of a model that knows nothing, and what says so; None where it is not known."""
    for fact in ("vocab_size", "vocabulary"):
        size = case.facts.get(fact)
        if isinstance(size, int) and size > 1:
            return math.log(size), "ln of the vocabulary"
    line = case.timeline
    begun = finite(line.values(_LOSS)[:3])
    if len(line) and int(line.steps[0]) <= 3 and len(begun) == 3 and np.median(begun) > 0:
        return float(np.median(begun)), "what the run began with"
    return None


def _symptom(
    case: Case, name: str, degree: float, statement: str, step: int | None = None
) -> Symptom:
    """With the reading of the loss at a step, or the last one."""
    readings = case.timeline.readings(_LOSS, case.onset_step if step is None else step, step)
    return Symptom(name=name, degree=degree, statement=statement, readings=tuple(readings[-1:]))
