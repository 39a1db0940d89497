"""A public report as a case: its numbers and its settings, never what anybody concluded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from foreshock.catalog import members
from foreshock.core.case import Case
from foreshock.core.detector import Alarm, AlarmKind, Detector
from foreshock.core.names import GRAD_NORM, LOSS, LOSS_SCALE, LR, split_series
from foreshock.core.reading import ABSENT
from foreshock.core.timeline import Timeline

SIGNALS: Final = (LOSS.name, GRAD_NORM.name, LR.name, LOSS_SCALE.name)
"""What traces show under our own names; anything else in them is left out."""
_CLOCKS: Final = ("step", "iter", "i")
_RUNS: Final = ("run", "exp", "cfg")
"""Labels of runs that are shown beside each other."""

FEW_READINGS: Final = 8
"""A report is thin if no series of one run has as many, and no setting tells anything: fewer do
not show what was usual and what was not."""

_MORE_THAN_USUAL = 1.5


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What a report shows.

    Attributes:
        case: with one alarm at least.
        num_readings: of the series that has most.
        told: settings that say something: "resume", "precision".
        alarms_by: "detectors", or "report" where none alarmed: the reporter says that something
            is wrong, and the reading that stands out most is taken for it.
    """

    case: Case
    num_readings: int
    told: tuple[str, ...]
    alarms_by: str

    @property
    def is_thin(self) -> bool:
        """Whether it shows too little for anybody to tell the cause by."""
        return self.num_readings < FEW_READINGS and not self.told


def reported(row: Mapping[str, Any]) -> Reported:
    """The case of a report; `trace` and `config` alone are read."""
    config: Mapping[str, Any] = row["config"]
    rows = longest_run(row["trace"])
    shown = [name for name in SIGNALS if any(number(one.get(name)) is not None for one in rows)]
    series = [f"{name}/global" for name in shown] or [f"{LOSS.name}/global"]
    timeline = Timeline(series, capacity=max(1, len(rows)), dtype=np.float32)
    for step, one in zip(steps_of(rows), rows, strict=True):
        found = [number(one.get(name)) for name in shown]
        values = np.array(
            [ABSENT if value is None else np.float32(value) for value in found], np.float32
        )
        if len(values):
            timeline.append(1, step, True, values)
    facts, told = _facts(config, shown)
    alarms = _detected(timeline)
    by = "detectors" if alarms else "report"
    alarms = alarms or [_stands_out(timeline)]
    onset = min(alarm.onset_step for alarm in alarms)
    starts = (0, max(1, onset - 1)) if "resume" in told else (0,)
    case = Case(timeline=timeline, alarms=tuple(alarms), facts=facts, starts=starts)
    num = max((len(timeline.values(name)) for name in series), default=0)
    return Reported(case=case, num_readings=num, told=told, alarms_by=by)


def longest_run(trace: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of the run that has most, the first of those that have as many.

    Another label, or a clock that does not rise, begins another run. Rows without a number
    under one of our names are passed over.
    """
    runs: list[list[Mapping[str, Any]]] = [[]]
    label, last = None, -math.inf
    for row in trace:
        if all(number(row.get(name)) is None for name in SIGNALS):
            continue
        mine = tuple(row.get(name) for name in _RUNS)
        clock = _clock(row)
        named = any(one is not None for one in mine)
        if (named and label is not None and mine != label) or (clock is not None and clock <= last):
            runs.append([])
            last = -math.inf
        runs[-1].append(row)
        label = mine if named else label
        last = clock if clock is not None else last
    return max(runs, key=len)


def steps_of(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The clock where each row has one, and it rises; else the places of rows, from 1 on."""
    clocks = [_clock(row) for row in rows]
    known = [one for one in clocks if one is not None]
    if len(known) == len(rows) and all(a < b for a, b in pairwise(known)):
        return [int(one) for one in known]
    return list(range(1, len(rows) + 1))


def number(value: Any) -> float | None:
    """A number, also one written as a string ("nan"); None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and value.strip().lower() in ("nan", "inf", "-inf"):
        return float(value)
    return None


def _clock(row: Mapping[str, Any]) -> float | None:
    for name in _CLOCKS:
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
    return None


def _facts(
    config: Mapping[str, Any], shown: Sequence[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Facts of the run, and which settings told something."""
    facts: dict[str, Any] = {"has_scaler": LOSS_SCALE.name in shown, "harm": ""}
    told: list[str] = []
    if (precision := _precision(config.get("precision"))) is not None:
        facts["precision"] = precision
        facts["has_scaler"] = facts["has_scaler"] or precision == "fp16"
        told.append("precision")
    if config.get("resume") is True:
        told.append("resume")
    return facts, tuple(told)


def _precision(value: Any) -> str | None:
    text = str(value).lower()
    if value is None:
        return None
    if "bf16" in text:
        return "bf16"
    return "fp16" if "16" in text else "fp32" if "32" in text else None


def _detected(timeline: Timeline) -> list[Alarm]:
    """What our detectors say of a run that began where the trace begins."""
    found: list[Alarm] = []
    for kind in members("detectors").values():
        detector: Detector = kind()
        if detector.advisory:
            continue
        for name in timeline.series:
            values = timeline.values(name)
            if split_series(name)[0] not in detector.watches or not len(values):
                continue
            steps = timeline.steps_of(name)
            _, alarms = detector.update(detector.init([name]), steps, values[:, None])
            found += alarms
    return sorted(found, key=lambda alarm: alarm.step)


def _stands_out(timeline: Timeline) -> Alarm:
    """An alarm at the reading that is furthest above the median of those before it.

    Of the loss, or of the first series there is; at the last reading if none is above half as
    much again; at step 1 without any.
    """
    name = timeline.series[0]
    values, steps = timeline.values(name), timeline.steps_of(name)
    place, most = max(0, len(values) - 1), _MORE_THAN_USUAL
    for at in range(1, len(values)):
        before = float(np.median(values[:at]))
        if before > 0 and values[at] / before > most:
            place, most = at, values[at] / before
    step = int(steps[place]) if len(values) else 1
    value = float(values[place]) if len(values) else math.nan
    baseline = float(np.median(values[:place])) if place else math.nan
    return Alarm(
        kind=AlarmKind.SPIKE if most > _MORE_THAN_USUAL else AlarmKind.SHIFT,
        detector="report",
        series=name,
        step=step,
        onset_step=step,
        value=value if len(values) else 0.0,
        baseline=baseline,
    )
