"""What a run went through, attempt by attempt: each with the past that it goes on from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from foreshock.inspection.trace import Trace

_CONTEXT = 1000
"""Readings before a restart that an attempt is judged against."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """One attempt with the readings that led to it; what a restart undid is left out.

    Attributes:
        traces: by signal; the first part is the past, from the attempts before.
        first_clock: readings from this time on are the attempt's own.
        is_last: whether no later attempt follows.
        restarted: whether a restart began it.
    """

    traces: Mapping[str, Trace]
    first_clock: int
    is_last: bool
    restarted: bool


def lineages(traces: Mapping[str, Trace]) -> list[Lineage]:
    """The attempts of a run, in order; a single one where no restart went back.

    A restart that goes on at the next step undoes nothing and begins no lineage.
    """
    lead = _lead(traces)
    if lead is None:
        return [Lineage(traces=traces, first_clock=0, is_last=True, restarted=False)]
    falls = np.flatnonzero(np.diff(lead.steps) <= 0) + 1
    falls = falls[lead.attempts[falls] != lead.attempts[falls - 1]]
    if not len(falls):
        return [Lineage(traces=traces, first_clock=0, is_last=True, restarted=False)]
    attempts = [int(lead.attempts[0]), *lead.attempts[falls].tolist()]
    ends = [*attempts[1:], int(lead.attempts[-1]) + 1]
    found: list[Lineage] = []
    for number, (first, end) in enumerate(zip(attempts, ends, strict=True)):
        start = int(lead.clock[falls[number - 1]]) if number else 0
        step = int(lead.steps[falls[number - 1]]) if number else 0
        mine = {
            name: part
            for name, trace in traces.items()
            if len(part := _part(trace, first, end, step)) and _has_own(part, first)
        }
        found.append(
            Lineage(
                traces=mine,
                first_clock=start,
                is_last=number == len(attempts) - 1,
                restarted=number > 0,
            )
        )
    return found


def _part(trace: Trace, first: int, end: int, step: int) -> Trace:
    """The readings of attempts `first` to `end`, after the surviving ones of those before."""
    own = (trace.attempts >= first) & (trace.attempts < end)
    past = np.flatnonzero((trace.attempts < first) & (trace.steps < step))
    if len(past):  # of what was trained several times, the last attempt survives
        later = np.minimum.accumulate(trace.steps[past][::-1])[::-1]
        survives = np.ones(len(past), np.bool_)
        survives[:-1] = trace.steps[past][:-1] < later[1:]
        past = past[survives][-_CONTEXT:]
    mask = own.copy()
    mask[past] = True
    part = trace.kept(mask)
    if (np.diff(part.steps) > 0).all():
        return part
    return replace(part, clock=part.clock)


def _has_own(part: Trace, first: int) -> bool:
    return bool((part.attempts >= first).any())


def _lead(traces: Mapping[str, Trace]) -> Trace | None:
    for name in ("loss", "grad_norm"):
        if name in traces:
            return traces[name]
    return max(traces.values(), key=len, default=None)
