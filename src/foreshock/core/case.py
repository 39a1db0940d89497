"""A case: everything that is known of an episode when it is diagnosed."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from foreshock.core.detector import Alarm
from foreshock.core.experiment import Result
from foreshock.core.names import LR, series_name
from foreshock.core.reading import Reading
from foreshock.core.stats import usual_of
from foreshock.core.symptom import Observed
from foreshock.core.timeline import Timeline

REFERENCE_STEPS = 50
"""Steps before the onset that count as the series' healthy past in a case."""

_RATE_JUMP = 1.5
_RATE_RISES = 4.0
_RATE_PAST_STEPS = 5
_RATE_RISING = 1.01


@dataclass(frozen=True, kw_only=True)
class Jump:
    """How far one series stands from its healthy past at one step.

    Attributes:
        ratio: value over the median of the reference.
        z: robust deviations above that median.
        readings: the value, as evidence.
    """

    step: int
    value: float
    baseline: float
    ratio: float
    z: float
    readings: tuple[Reading, ...]


@dataclass(frozen=True, kw_only=True)
class RateJump:
    """A learning rate that rose in one step as it had not risen before.

    Attributes:
        step: the first step with the raised rate.
        before: rate of the step before it.
        after: rate of `step`.
        highest_before: the highest of the `REFERENCE_STEPS` before it, other jumps left out.
        was_rising: whether the rate rose by its schedule up to the jump, as in a warm-up, so
            that what it would have been by now is not known.
        readings: the last rate before the jump, and the first after it.
    """

    step: int
    before: float
    after: float
    highest_before: float
    was_rising: bool
    readings: tuple[Reading, ...]

    @property
    def ratio(self) -> float:
        """By how much it rose."""
        return _ratio(self.after, self.before)


@dataclass(frozen=True, kw_only=True)
class BatchFinding:
    """A fact about the samples of the window that stands out from those before it.

    Attributes:
        statement: in words, with its numbers.
        strength: in log-odds; negative where nothing stands out, of few samples.
        fact: which it is: "repetition", "non_text", "replacement", "diversity", "length",
            "source" (new), "alike", "seen_before" or "labels_masked"; "" of one that is not told.
    """

    statement: str
    strength: float
    fact: str = ""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something of the run that is not as it was at the start before.

    Attributes:
        step: the last step before the start from which on it is so.
        kind: "configuration", "package", "environment", "code", "data", "world" or "hardware".
        name: what changed.
        before: as it was, in words.
        after: as it is.
    """

    step: int
    kind: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """Something that was done about the trouble, and what came of it.

    Attributes:
        step: the step after which it was done.
        action: by the name of the action, or of the rung ("rollback", "reset_moments", …).
        helped: whether the trouble stayed away; None where that is not known yet.
    """

    step: int
    action: str
    helped: bool | None


@dataclass(frozen=True, kw_only=True)
class Case:
    """An episode with its surroundings.

    Attributes:
        timeline: readings up to now.
        alarms: of the episode, in order.
        advisories: alarms that opened no episode (drift, shift, plateau, …), in order; of the
            steps from `REFERENCE_STEPS` before the onset on.
        facts: of the run (has_scaler, precision, …), and `harm`: what a probe found, in
            words; empty if none looked or none found any.
        batch_findings: what stands out in the samples trained since the onset; None if
            they could not be looked at.
        tried: what has been tried in this incident without success, by rung.
        starts: the last step before each start of a process in the run, in order; the first
            is 0.
        changes: what differs from the start before, of all starts.
        interventions: what was done, in this run, and whether it helped.
        findings: what is certainly wrong, as signals said it (replicas that differ, …), with
            the step.
        results: of experiments that were made on this episode, in order.
        symptoms: what looks found in all this, by name.
    """

    timeline: Timeline
    alarms: Sequence[Alarm]
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    batch_findings: Sequence[BatchFinding] | None = None
    tried: Sequence[str] = ()
    advisories: Sequence[Alarm] = ()
    starts: Sequence[int] = ()
    changes: Sequence[Change] = ()
    interventions: Sequence[Intervention] = ()
    findings: Sequence[tuple[int, str]] = ()
    results: Sequence[Result] = ()
    symptoms: Mapping[str, Observed] = field(default_factory=dict[str, Observed])

    @property
    def onset_step(self) -> int:
        """First step at which any alarmed series left its range."""
        return min(alarm.onset_step for alarm in self.alarms)

    @property
    def last_step(self) -> int:
        """Last step that has been seen."""
        return int(self.timeline.steps[-1]) if len(self.timeline) else self.alarms[-1].step

    @property
    def alarmed_steps(self) -> tuple[int, ...]:
        """Distinct steps with an alarm."""
        return tuple(sorted({alarm.step for alarm in self.alarms}))

    @property
    def loss_moved_step(self) -> int | None:
        """First step at which the loss left its range, as far as its alarms tell."""
        moved = [alarm.onset_step for alarm in self.alarms if alarm.signal == "loss"]
        return min(moved, default=None)

    def jump(self, series: str, step: int) -> Jump | None:
        """How far `series` stands at `step` from the steps before the onset.

        None if it is not measured then, or has too little past (5 finite values of steps
        whose update was made).
        """
        now = self.timeline.values(series, step, step)
        past = self._past(series)
        if len(now) == 0 or past is None:
            return None
        value, (baseline, spread) = float(now[0]), past
        return Jump(
            step=step,
            value=value,
            baseline=baseline,
            ratio=_ratio(value, baseline),
            z=(value - baseline) / spread,
            readings=tuple(self.timeline.readings(series, step, step)),
        )

    def first_beyond(
        self, series: str, *, z: float = -math.inf, ratio: float = -math.inf
    ) -> Jump | None:
        """The first step since the onset at which `series` stood that far out of its past."""
        past = self._past(series)
        if past is None:
            return None
        baseline, spread = past
        values = self.timeline.values(series, self.onset_step, None).tolist()
        steps = self.timeline.steps_of(series, self.onset_step, None).tolist()
        for step, value in zip(steps, values, strict=True):
            if (value - baseline) / spread >= z and _ratio(value, baseline) >= ratio:
                return self.jump(series, step)
        return None

    def _past(self, series: str) -> tuple[float, float] | None:
        """Median and robust deviation before the onset; None of fewer than 5 values."""
        first = self.onset_step - REFERENCE_STEPS
        past = self.timeline.values(series, first, self.onset_step - 1, committed_only=True)
        past = past[np.isfinite(past)]
        return None if len(past) < 5 else usual_of(past)

    def peak(self, series: str, last_step: int | None = None) -> Jump | None:
        """The largest jump of `series` since the onset, up to a step if one is given."""
        values = self.timeline.values(series, self.onset_step, last_step)
        if len(values) == 0 or not np.isfinite(values).any():
            return None
        steps = self.timeline.steps_of(series, self.onset_step, last_step)
        finite = np.where(np.isfinite(values), values, -np.inf)
        return self.jump(series, int(steps[int(np.argmax(finite))]))

    @cached_property
    def rate_jump(self) -> RateJump | None:
        """The largest jump of the learning rate that may be behind the episode.

        A step to 1.5 times the rate of the step before, by over four times what any step of
        the `REFERENCE_STEPS` before it had raised the rate by: no step of a warm-up is, linear
        or exponential. It counts up to the first alarm, from half as many steps before the
        onset on, whether the rate is still up or not. None without five readings before it.
        """
        series, last = series_name(LR.name), self.alarms[0].step
        since = self.onset_step - REFERENCE_STEPS // 2
        rates = self.timeline.values(series, since - REFERENCE_STEPS, last).tolist()
        steps = self.timeline.steps_of(series, since - REFERENCE_STEPS, last).tolist()
        found: RateJump | None = None
        for place in range(_RATE_PAST_STEPS, len(rates)):
            before, after = rates[place - 1], rates[place]
            if steps[place] < since or not 0 < _RATE_JUMP * before <= after < math.inf:
                continue
            past = [rate for rate in rates[max(0, place - REFERENCE_STEPS) : place] if rate >= 0]
            recent = past[-REFERENCE_STEPS // 2 :]
            usual = max((b - a for a, b in itertools.pairwise(past)), default=0.0)
            if len(past) < _RATE_PAST_STEPS or after - before <= _RATE_RISES * usual:
                continue
            if found is None or after / before > found.ratio:
                found = RateJump(
                    step=steps[place],
                    before=before,
                    after=after,
                    highest_before=max(one for one in past if one < _RATE_JUMP * before),
                    was_rising=before > _RATE_RISING * recent[0],
                    readings=tuple(self.timeline.readings(series, steps[place - 1], steps[place])),
                )
        return found

    def rose_at_once(self, series: str) -> bool:
        """Whether a series rose up to the onset mostly in one step, unlike a warm-up ramp."""
        values = self.timeline.values(series, self.onset_step - REFERENCE_STEPS, self.onset_step)
        values = values[np.isfinite(values)]
        if len(values) < 2:
            return False
        rise = float(values[-1] - values.min())
        return rise > 0 and float(np.diff(values).max()) >= rise / 2


def _ratio(value: float, baseline: float) -> float:
    """`value / baseline`; 0/0 is as before, 1."""
    if baseline:
        return value / baseline
    return 1.0 if value == 0 else math.copysign(math.inf, value)
