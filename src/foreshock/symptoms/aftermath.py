"""How an episode goes on: back in range, still out, falling back, or coming again."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from foreshock.core.case import Case
from foreshock.core.detector import AlarmKind
from foreshock.core.looking import finite, graded, past_of
from foreshock.core.stats import MAD_TO_SD
from foreshock.core.symptom import Look, Symptom

_AFTER_STEPS = 5
_OF_A_LEVEL = frozenset(
    {AlarmKind.SHIFT, AlarmKind.DRIFT, AlarmKind.ELEVATION, AlarmKind.PLATEAU, AlarmKind.COLLAPSE}
)
"""Kinds that are raised once for all that follows."""
_FOLLOWED = ("loss/global", "grad_norm/global")


@dataclass(frozen=True, kw_only=True)
class Aftermath(Look):
    """What came after the first alarm.

    Brief: at most `brief_steps` alarmed steps (to the degree 0.5 one more), and readings in
    range since. Lasting: still out of range at the last step; a first alarm at the last step
    can still become either, and counts half. Rules accept a new level after some readings and
    fall silent, so that a loss or gradient norm that raised alarms must itself be back near its
    median of before the onset. Recovering: not back yet, but most of the way down from its peak.
    Recurring at every step: alarms in nearly all of the last readings; periodically: at least
    `fewest_peaks` separate peaks of the loss at even distances, in all that is remembered.
    Harm that a probe found is told of; that it found none is not recorded, and no evidence.

    Usual: width tells benign from malignant (K2-65B report; BLOOM-176B's were over in 30 steps);
    most episodes that open are brief, and a third is still under way when it is diagnosed.

    Args:
        brief_steps: 2, as an optimizer without memory would have it.
        away_z: robust deviations at which a series is out of range, 6; at 4 it is in.
        level_z: those at which a level is another one, 3: medians are compared.
        fewest_steps: readings since the first alarm before "at every step" is asked, 5.
        fewest_peaks: 4 peaks have 3 distances; two of them would agree by chance.
        fewest_readings: of the past before periods are asked for, 200.
    """

    name: ClassVar[str] = "aftermath"
    usual: ClassVar[Mapping[str, float]] = {
        "brief": 0.3,
        "lasting": 0.6,
        "recovering": 0.5,
        "recurs_every_step": 0.25,
        "recurs_periodically": 0.05,
        "probe_found_harm": 0.5,
    }
    brief_steps: int = 2
    away_z: float = 6.0
    level_z: float = 3.0
    fewest_steps: int = 5
    fewest_peaks: int = 4
    fewest_readings: int = 200

    def look(self, case: Case) -> Iterable[Symptom]:
        yield from self._width(case)
        yield from self._recovering(case)
        yield from self._every_step(case)
        yield from self._periods(case)
        if harm := case.facts.get("harm"):
            said = f"a probe found the model hurt: {harm}".rstrip(".")
            yield Symptom(name="probe_found_harm", degree=1.0, statement=said)

    def _width(self, case: Case) -> Iterable[Symptom]:
        if all(alarm.kind in _OF_A_LEVEL for alarm in case.alarms):
            yield from self._level(case)
            return
        last, count = case.alarms[-1], len(case.alarmed_steps)
        since = [
            reading
            for series in dict.fromkeys(alarm.series for alarm in case.alarms)
            for reading in case.timeline.readings(series, last.step + 1, None)[:3]
        ]
        if case.last_step < last.step:
            return
        if case.last_step == last.step:
            out = min(1.0, 0.25 + 0.25 * count)
        elif since:
            out = self._still_out(case, last.step)
        else:
            return
        if since or out == 1.0:
            narrow = graded(count, self.brief_steps + 2, self.brief_steps)
            said = (
                f"{count} alarmed step(s); in range again since step {last.step + 1}"
                if out < 0.5
                else f"{count} alarmed step(s), and not back in range by step {case.last_step}"
            )
            yield Symptom(
                name="brief",
                degree=narrow * (1 - out),
                statement=said,
                readings=tuple(since[:5]),
            )
        said = (
            f"out of range at step {case.last_step} still, {case.last_step - case.onset_step} "
            "steps after the onset"
            if out >= 0.5
            else f"no longer out of range at step {case.last_step}"
        )
        yield Symptom(name="lasting", degree=out, statement=said, readings=tuple(since[-1:]))

    def _level(self, case: Case) -> Iterable[Symptom]:
        """Of alarms that tell of a level, one is raised for all of it: where does it stand now?"""
        last = case.alarms[-1]
        past, values = past_of(case, last.series), case.timeline.values(last.series, last.step)
        recent = finite(values[-5:])
        if past is None or len(recent) < 3:
            return
        away = abs(float(np.median(past.z(recent))))
        out = graded(away, self.level_z / 2, self.level_z)
        said = f"{last.series} stands {away:.3g} deviations from its median before"
        for name, degree in (("brief", 0.0 if out else 0.5), ("lasting", out)):
            yield Symptom(name=name, degree=degree, statement=said)

    def _still_out(self, case: Case, last: int) -> float:
        """To which degree an alarmed loss or gradient norm is away after the last alarm."""
        found = 0.0
        for series in {alarm.series for alarm in case.alarms} & set(_FOLLOWED):
            past, values = past_of(case, series), case.timeline.values(series, last + 1, None)
            if past is None or len(values) == 0:
                continue
            if not len(recent := finite(values[-3:])):
                return 1.0 if np.isinf(values[-3:]).any() else found
            z = float(np.median(past.z(recent)))
            found = max(found, graded(z, self.away_z - 2, self.away_z + 2))
        return found

    def _recovering(self, case: Case) -> Iterable[Symptom]:
        for series in _FOLLOWED:
            past, steps = past_of(case, series), case.timeline.steps_of(series, case.onset_step)
            values = case.timeline.values(series, case.onset_step, None)
            if past is None or len(values) == 0:
                continue
            z = past.z(np.where(np.isnan(values), np.inf, values))
            # Long after the last alarm something peaks by chance.
            near = int(np.searchsorted(steps, case.alarms[-1].step + _AFTER_STEPS, "right"))
            z, recent = z[:near], z[-3:]
            if not len(z):
                continue
            top = len(z) - 1 - int(np.argmax(z[::-1]))
            if z[top] < self.away_z:
                continue
            now = float(np.median(recent))
            if len(values) - top <= 3 and np.isfinite(recent[-1]):
                return
            share = 0.0 if math.isinf(now) else 1 - max(now, 0.0) / z[top]
            said = (
                f"{series} stands {now:.3g} deviations above its median, after {z[top]:.3g} at "
                f"step {steps[top]}"
            )
            yield Symptom(
                name="recovering",
                degree=graded(float(share), 0.25, 0.75),
                statement=said,
                readings=tuple(case.timeline.readings(series, int(steps[-1]), int(steps[-1]))),
            )
            return

    def _every_step(self, case: Case) -> Iterable[Symptom]:
        first = case.alarmed_steps[0]
        rows = case.timeline.steps[np.searchsorted(case.timeline.steps, first) :]
        if len(rows) < self.fewest_steps:
            return
        alarmed = int(np.isin(rows, case.alarmed_steps).sum())
        said = f"{alarmed} of the {len(rows)} readings since the first alarm raised one"
        degree = graded(alarmed / len(rows), 0.5, 0.9)
        yield Symptom(name="recurs_every_step", degree=degree, statement=said)

    def _periods(self, case: Case) -> Iterable[Symptom]:
        series = "loss/global"
        steps, values = case.timeline.steps_of(series), case.timeline.values(series)
        steps, values = steps[np.isfinite(values)], values[np.isfinite(values)]
        if len(values) < self.fewest_readings:
            return
        peaks = _peaks(steps, values, self.away_z + 2)
        gaps = [after - before for before, after in itertools.pairwise(peaks)]
        if len(peaks) < self.fewest_peaks:
            said = f"{len(peaks)} peak(s) of the loss in {len(values)} readings: no period"
            yield Symptom(name="recurs_periodically", degree=0.0, statement=said)
            return
        middle = float(np.median(gaps))
        uneven = float(np.median(np.abs(np.array(gaps) - middle))) / middle
        said = f"{len(peaks)} peaks of the loss, {min(gaps)} to {max(gaps)} steps apart"
        yield Symptom(
            name="recurs_periodically",
            degree=graded(uneven, 0.3, 0.1),
            statement=said,
            readings=tuple(
                reading
                for step in peaks[-5:]
                for reading in case.timeline.readings(series, step, step)
            ),
        )


def _peaks(steps: NDArray[np.int64], values: NDArray[np.float64], z: float) -> list[int]:
    """Steps at which the loss left the range of the readings before it; one an excursion."""
    width = 32
    windows = np.lib.stride_tricks.sliding_window_view(values[:-1], width)
    with np.errstate(all="ignore"):
        middle = np.median(windows, axis=1)
        spread = MAD_TO_SD * np.median(np.abs(windows - middle[:, None]), axis=1)
        spread = np.maximum(spread, 0.01 * np.abs(middle))
        out = np.flatnonzero(values[width:] - middle > z * np.maximum(spread, 1e-12)) + width
    found: list[int] = []
    last = -width
    for row in out.tolist():
        if row - last > width // 2:
            found.append(int(steps[row]))
        last = row
    return found
