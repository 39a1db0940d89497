"""Weighs the causes of the worst episode, with the same rules as a live run."""

from collections.abc import Mapping

import numpy as np

from foreshock.catalog import members
from foreshock.core.case import REFERENCE_STEPS, Case
from foreshock.core.cause import Diagnosis, diagnose
from foreshock.core.detector import Alarm
from foreshock.core.timeline import Timeline
from foreshock.inspection.alarms import at_readings, on_steps
from foreshock.inspection.finding import Episode
from foreshock.inspection.trace import Trace

WEIGHED = ("loss", "grad_norm", "lr", "loss_scale", "update_ratio", "param_norm", "clip_share")
_AHEAD = 100
_LEAST_PAST = 10


def rank_causes(
    episode: Episode, traces: Mapping[str, Trace], alarms: Mapping[str, tuple[Alarm, ...]]
) -> Diagnosis | None:
    """The ranked causes of the episode that the class comes from.

    Args:
        traces: by signal, of the attempt that it belongs to.
        alarms: causal ones of the whole run.

    None where no live rule alarmed in it, or fewer than ten readings came before: too
    little to weigh anything by.
    """
    lead = traces.get("loss") or traces.get("grad_norm")
    if lead is None:
        return None
    last_step = episode.end_step if episode.end_step is not None else int(lead.steps[-1])
    places = np.flatnonzero((lead.steps >= episode.onset_step) & (lead.steps <= last_step))
    if not len(places) or places[0] < _LEAST_PAST:
        return None
    low, high = max(0, int(places[0]) - REFERENCE_STEPS), int(min(places[-1], places[0] + _AHEAD))
    clocks = lead.clock[low : high + 1]
    first, last = int(lead.clock[places[0]]), int(clocks[-1])
    shown = {name: traces[name] for name in WEIGHED if name in traces}
    mine = [
        (alarm, trace)
        for name, trace in shown.items()
        for alarm in at_readings(alarms.get(name, ()), trace)
        if first <= alarm.step <= last and alarm.onset_step >= int(clocks[0])
    ]
    if not mine:
        return None
    times = lead.steps[low : high + 1]
    has_steps = bool((np.diff(times) > 0).all())
    raised = [on_steps(alarm, trace) if has_steps else alarm for alarm, trace in mine]
    timeline = Timeline([f"{name}/global" for name in shown], capacity=len(clocks))
    columns = np.full((len(clocks), len(shown)), np.nan)
    for column, trace in enumerate(shown.values()):
        _, rows, theirs = np.intersect1d(clocks, trace.clock, return_indices=True)
        columns[rows, column] = trace.values[theirs]
    for time, row in zip((times if has_steps else clocks).tolist(), columns, strict=True):
        timeline.append(1, time, True, row)
    case = Case(timeline=timeline, alarms=tuple(sorted(raised, key=lambda alarm: alarm.step)))
    causes, looks = (
        [kind() for kind in members(family).values()] for family in ("causes", "symptoms")
    )
    return diagnose(case, causes, looks)
