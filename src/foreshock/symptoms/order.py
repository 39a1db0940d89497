"""Which of loss, gradient and update left its range first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from foreshock.core.case import Case
from foreshock.core.looking import first_broken, graded, graded_ratio, past_of
from foreshock.core.reading import Reading
from foreshock.core.symptom import Look, Symptom

_SERIES = ("loss/global", "grad_norm/global", "update_ratio/global")
_WORDS = ("the loss", "the gradient norm", "the update")
_NEEDED = ((2,), (0,), (0, 1))
"""Without a reading of these, the others, it cannot be said that one was first."""
_VOTES = (2 / 3, 5 / 6, 1.0, 7 / 6, 4 / 3)


class _Moved(NamedTuple):
    """Where a series moved: by `latest` for certain, not before `earliest`; `(step, place)`.

    The place in the step is 0 for the loss, 1 for the gradient, 2 for the update.
    """

    has_moved: bool
    earliest: tuple[int, int]
    latest: tuple[int, int]
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Order(Look):
    """Loss, gradient norm and update ratio: which of them moved, and which first.

    A step's loss is measured before its gradient, that before its update, so that in one and
    the same step the loss comes first. Where readings are some steps apart, as in a printed log,
    what moved between two of them moved at an unknown step: then none is said to be first
    unless it was so for certain. Each answer is a vote: thresholds are multiplied by 2/3 to
    4/3, and the degree is the share of those at which it is so; without three that tell, there
    is no answer. Asked only where something moved.

    The loss is not said to be first where the update is not measured, the gradient not without
    the loss, the update not without both. Looked for from `lead_steps` before the onset on; what
    moved before the onset counts only if it stayed out until then.

    Usual: an alarm is on the loss or the gradient norm as a rule, and they go together; the update
    is drawn along by them in half of the episodes. Of eleven families of cause that move loss and
    update at all, the update is first in optimizer state, rate, stale moment and update norm.

    Args:
        z: robust deviations, 6, as in `detectors/spike`.
        gradient_ratio: 1.5 times its median too: gradient norms have long tails.
        update_ratio: 3 times its median.
        lead_steps: 20; a baseline of 50 steps stands as long as less than half is moved.
        reach_steps: after the onset, in which a series that raised no alarm is looked at.
    """

    name: ClassVar[str] = "order"
    usual: ClassVar[Mapping[str, float]] = {
        "loss_moved": 0.65,
        "gradient_moved": 0.75,
        "update_moved": 0.4,
        "loss_moved_first": 0.4,
        "gradient_moved_first": 0.25,
        "update_moved_first": 0.2,
    }
    z: float = 6.0
    gradient_ratio: float = 1.5
    update_ratio: float = 3.0
    lead_steps: int = 20
    reach_steps: int = 20

    def look(self, case: Case) -> Iterable[Symptom]:
        votes = [[self._moved(case, place, vote) for place in range(3)] for vote in _VOTES]
        nominal = votes[_VOTES.index(1.0)]
        for place in range(3):
            degree = self._degree(case, place)
            if degree is not None:
                moves = [vote[place] for vote in votes]
                yield self._has_moved(case, place, degree, [one for one in moves if one])
        for place, name in enumerate(("loss", "gradient", "update")):
            told = [one for one in (_was_first(place, vote) for vote in votes) if one is not None]
            if len(told) > len(_VOTES) // 2:
                degree = sum(told) / len(told)
                yield Symptom(
                    name=f"{name}_moved_first",
                    degree=degree,
                    statement=_told(place, degree, nominal),
                    readings=tuple(_readings(case, nominal)),
                )

    def _limits(self, place: int, scale: float) -> tuple[float, float]:
        """Least deviations and least ratio."""
        if place == 2:
            return -np.inf, self.update_ratio * scale
        return self.z * scale, (self.gradient_ratio * scale if place else -np.inf)

    def _last_step(self, case: Case, series: str) -> int | None:
        """Up to where it is looked at; to the end where the series raised alarms of its own.

        In a hundred steps a gradient norm that is well leaves its range now and then.
        """
        alarmed = (one.series == series for one in (*case.alarms, *case.advisories))
        return None if any(alarmed) else case.onset_step + self.reach_steps

    def _degree(self, case: Case, place: int) -> float | None:
        """To which degree a series moved at all; None where that was not measured."""
        series = _SERIES[place]
        if first_broken(case, series) is not None:
            return 1.0
        past = past_of(case, series)
        last = self._last_step(case, series)
        values = case.timeline.values(series, case.onset_step, last)
        values = values[~np.isnan(values)]
        if past is None or len(values) == 0:
            return None
        alarmed = any(alarm.series == series for alarm in case.alarms)
        if alarmed and place < 2:
            return 1.0
        low, high = (self._limits(place, scale) for scale in (_VOTES[0], _VOTES[-1]))
        ratio = float(past.ratio(values).max())
        if place == 2:
            return graded_ratio(ratio, low[1], high[1])
        by_z = graded(float(past.z(values).max()), low[0], high[0])
        return by_z if place == 0 else min(by_z, graded(ratio, low[1], high[1]))

    def _has_moved(self, case: Case, place: int, degree: float, moves: list[_Moved]) -> Symptom:
        series, words = _SERIES[place], _WORDS[place]
        name = f"{('loss', 'gradient', 'update')[place]}_moved"
        broken = first_broken(case, series)
        if broken is not None:
            told = tuple(case.timeline.readings(series, broken, broken))
            return Symptom(
                name=name,
                degree=1.0,
                statement=f"{words} is NaN or Inf at step {broken}",
                readings=told,
            )
        early = [one for one in moves if one.has_moved and one.latest[0] < case.onset_step]
        if len(early) > degree * len(_VOTES):
            step, ratio = early[0].latest[0], early[0].ratio
            return Symptom(
                name=name,
                degree=len(early) / len(_VOTES),
                statement=f"{words} was {ratio:.3g} times its median at step {step}",
                readings=tuple(case.timeline.readings(series, step, step)),
            )
        peak = case.peak(series, self._last_step(case, series))
        if peak is None:
            return Symptom(name=name, degree=degree, statement=f"{words} raised an alarm")
        verb = "rose to" if degree >= 0.5 else "never exceeded"
        return Symptom(
            name=name,
            degree=degree,
            statement=f"{words} {verb} {peak.value:.4g}, {peak.ratio:.3g} times its median "
            f"(step {peak.step})",
            readings=peak.readings,
        )

    def _moved(self, case: Case, place: int, scale: float) -> _Moved | None:
        """Where a series moved at thresholds times `scale`; None if it is not measured."""
        series, onset = _SERIES[place], case.onset_step
        broken, past = first_broken(case, series), past_of(case, series)
        last = self._last_step(case, series)
        steps = case.timeline.steps_of(series, onset - self.lead_steps, last)
        values = case.timeline.values(series, onset - self.lead_steps, last)
        if len(steps) == 0 or steps[-1] < onset or (past is None and broken is None):
            return None
        after = partial(_earliest, case, series, place)
        found, size = broken, np.inf
        if past is not None:
            z, ratio = self._limits(place, scale)
            beyond = (past.z(values) >= z) & (past.ratio(values) >= ratio)
            near = (past.z(values) >= z / 2) & (past.ratio(values) >= (1 + ratio) / 2)
            for row in np.flatnonzero(beyond).tolist():
                step = int(steps[row])
                if step >= onset or near[row : int(np.searchsorted(steps, onset))].all():
                    if found is None or step < found:
                        found, size = step, float(past.ratio(values)[row])
                    break
        if found is None:
            end = int(steps[-1]) + 1
            return _Moved(False, (end, place), (end, place), 1.0)
        return _Moved(True, after(found), (found, place), size)


def _earliest(case: Case, series: str, place: int, step: int) -> tuple[int, int]:
    """The earliest place at which a series moved that had not moved at its reading before."""
    before = case.timeline.steps_of(series, None, step - 1)
    return (int(before[-1]) + 1 if len(before) else step), place


def _was_first(place: int, moved: list[_Moved | None]) -> bool | None:
    """Whether one was first for certain, or for certain not; None where neither is so."""
    me, others = moved[place], [one for at, one in enumerate(moved) if at != place and one]
    if me is None or not any(one.has_moved for one in (me, *others)):
        return None
    if any(one.has_moved and one.latest < me.earliest for one in others):
        return False
    known = all(moved[at] is not None for at in _NEEDED[place])
    if me.has_moved and known and all(me.latest < one.earliest for one in others):
        return True
    return None


def _told(place: int, degree: float, moved: list[_Moved | None]) -> str:
    """Where each of them moved, in words."""
    told = [
        f"{words} moved at step {one.latest[0]}" if one.has_moved else f"{words} did not move"
        for words, one in zip(_WORDS, moved, strict=True)
        if one is not None
    ]
    verdict = "was first" if degree >= 0.5 else "was not first"
    return f"{_WORDS[place]} {verdict}: {', '.join(told)}"


def _readings(case: Case, moved: list[_Moved | None]) -> Iterable[Reading]:
    """Those at which each of them moved."""
    for series, one in zip(_SERIES, moved, strict=True):
        if one is not None and one.has_moved:
            yield from case.timeline.readings(series, one.latest[0], one.latest[0])
