"""Weighs the causes of the worst episode, with the same rules as a live run."""

from collections.abc import Mapping

import numpy as np

from foreshock.catalog import members
from foreshock.core.case import REFERENCE_STEPS, Case
from foreshock.core.cause import Diagnosis, diagnose
from foreshock.core.detector import Alarm
from foreshock.core.timeline import Timeline
from foreshock.inspection.finding import RunFinding
from foreshock.inspection.statement import deciding
from foreshock.inspection.trace import Trace

_SIGNALS = ("loss", "grad_norm", "lr", "loss_scale", "update_ratio", "param_norm", "clip_share")
_AHEAD = 100
_LEAST_PAST = 10


def rank_causes(
    finding: RunFinding, traces: Mapping[str, Trace], alarms: Mapping[str, tuple[Alarm, ...]]
) -> Diagnosis | None:
    """The ranked causes of the episode that the class comes from.

    None where no live rule alarmed in it, or fewer than ten readings came before: too
    little to weigh anything by.
    """
    episode = deciding(finding)
    lead = traces.get("loss") or traces.get("grad_norm")
    if episode is None or lead is None or not finding.run_class.is_trouble:
        return None
    last_step = episode.end_step if episode.end_step is not None else int(lead.steps[-1])
    places = np.flatnonzero((lead.steps >= episode.onset_step) & (lead.steps <= last_step))
    if not len(places) or places[0] < _LEAST_PAST:
        return None
    low, high = max(0, int(places[0]) - REFERENCE_STEPS), int(min(places[-1], places[0] + _AHEAD))
    clocks = lead.clock[low : high + 1]
    first, last = int(lead.clock[places[0]]), int(clocks[-1])
    mine = [
        alarm
        for found in alarms.values()
        for alarm in found
        if first <= alarm.step <= last and alarm.onset_step >= int(clocks[0])
    ]
    if not mine:
        return None
    shown = {name: traces[name] for name in _SIGNALS if name in traces}
    timeline = Timeline([f"{name}/global" for name in shown], capacity=len(clocks))
    columns = np.full((len(clocks), len(shown)), np.nan)
    for column, trace in enumerate(shown.values()):
        _, rows, theirs = np.intersect1d(clocks, trace.clock, return_indices=True)
        columns[rows, column] = trace.values[theirs]
    for clock, row in zip(clocks.tolist(), columns, strict=True):
        timeline.append(1, clock, True, row)
    case = Case(timeline=timeline, alarms=tuple(sorted(mine, key=lambda alarm: alarm.step)))
    return diagnose(case, [kind() for kind in members("causes").values()])
