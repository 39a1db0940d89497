"""What a run went through, attempt by attempt: each with the past that it goes on from."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from foreshock.core.log import Ints
from foreshock.inspection.trace import Trace

_CONTEXT, _LEAST_CONTEXT = 1000, 100
"""Readings before a restart that an attempt is judged against."""
_MANY_CONTEXT = 200_000
"""Such readings of all attempts together: where there are thousands, each has fewer."""


@dataclass(frozen=True, kw_only=True)
class Return:
    """Where a run went back: attempts `first` to `end` (excluded) go on from before `step`.

    Of the first attempt, which goes on from nothing, `step` and `clock` are 0.
    """

    first: int
    end: int
    step: int
    clock: int


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """One attempt with the readings that led to it; what a restart undid is left out.

    Attributes:
        traces: by signal; the first part is the past, from the attempts before.
        first_clock: readings from this time on are the attempt's own.
        is_last: whether no later attempt follows.
    """

    traces: Mapping[str, Trace]
    first_clock: int
    is_last: bool


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """The readings `start` to `stop` (excluded) of a trace are an attempt's own; `past` are
    those that survive before it, as pieces `(low, high)`, the latest last."""

    start: int
    stop: int
    past: tuple[tuple[int, int], ...]

    def places(self, most: int) -> Ints:
        """Its own readings, after at most so many of the past."""
        pieces: list[Ints] = [np.arange(self.start, self.stop)]
        for low, high in reversed(self.past):
            if most <= 0:
                break
            pieces.append(np.arange(max(low, high - most), high))
            most -= high - low
        return np.concatenate(pieces[::-1])


def returns(traces: Mapping[str, Trace]) -> tuple[Return, ...]:
    """Where a run began and went back, in order.

    A restart that goes on at the next step undoes nothing and is none.
    """
    lead = _lead(traces)
    if lead is None:
        return (Return(first=0, end=1, step=0, clock=0),)
    falls = np.flatnonzero(np.diff(lead.steps) <= 0) + 1
    falls = falls[lead.attempts[falls] != lead.attempts[falls - 1]]
    last = max(int(trace.attempts[-1]) for trace in traces.values())
    firsts = [0, *lead.attempts[falls].tolist()]
    steps, clocks = ([0, *each[falls].tolist()] for each in (lead.steps, lead.clock))
    ends = [*firsts[1:], last + 1]
    return tuple(
        Return(first=first, end=end, step=step, clock=clock)
        for first, end, step, clock in zip(firsts, ends, steps, clocks, strict=True)
    )


def stretches(trace: Trace, went_back: Sequence[Return]) -> Iterator[Stretch]:
    """The own readings of each attempt, and what survives of the ones before, by attempt."""
    alive: list[tuple[int, int]] = []
    for number, one in enumerate(went_back):
        start, stop = np.searchsorted(trace.attempts, (one.first, one.end)).tolist()
        if number:
            while alive and int(trace.steps[alive[-1][0]]) >= one.step:
                alive.pop()
            if alive:
                low, high = alive.pop()
                kept = int(np.searchsorted(trace.steps[low:high], one.step))
                alive.append((low, low + kept))
        yield Stretch(start=start, stop=stop, past=tuple(alive[-_CONTEXT:]))
        for low, high in _attempts(trace, start, stop):
            while alive and int(trace.steps[alive[-1][0]]) > int(trace.steps[low]):
                alive.pop()
            alive.append((low, high))


def lineages(traces: Mapping[str, Trace], went_back: Sequence[Return]) -> Iterator[Lineage]:
    """The attempts of a run, in order; a single one where it never went back."""
    if len(went_back) == 1:
        whole = {name: _risen(trace) for name, trace in traces.items()}
        yield Lineage(traces=whole, first_clock=0, is_last=True)
        return
    context = max(_LEAST_CONTEXT, min(_CONTEXT, _MANY_CONTEXT // len(went_back)))
    parts = {name: stretches(trace, went_back) for name, trace in traces.items()}
    for number, one in enumerate(went_back):
        mine: dict[str, Trace] = {}
        for name, trace in traces.items():
            stretch = next(parts[name])
            if stretch.start < stretch.stop:
                mine[name] = _risen(trace.taken(stretch.places(context)))
        yield Lineage(traces=mine, first_clock=one.clock, is_last=number == len(went_back) - 1)


def lineage_of(traces: Mapping[str, Trace], went_back: Sequence[Return], clock: int) -> Lineage:
    """The attempt in which a time lies."""
    return next(islice(lineages(traces, went_back), era(went_back, clock), None))


def era(went_back: Sequence[Return], clock: int) -> int:
    """The number of the attempt in which a time lies, from 0."""
    return max(0, bisect_right(went_back, clock, key=lambda one: one.clock) - 1)


def _risen(part: Trace) -> Trace:
    """What was not done again later: a signal may go back where the loss does not."""
    if (np.diff(part.steps) >= 0).all():
        return part
    later = np.minimum.accumulate(part.steps[::-1])[::-1]
    return part.kept(part.steps <= later)


def _attempts(trace: Trace, start: int, stop: int) -> list[tuple[int, int]]:
    """The readings of each attempt within a stretch."""
    if start == stop:
        return []
    cuts = (start + 1 + np.flatnonzero(np.diff(trace.attempts[start:stop]))).tolist()
    return list(zip([start, *cuts], [*cuts, stop], strict=True))


def _lead(traces: Mapping[str, Trace]) -> Trace | None:
    for name in ("loss", "grad_norm"):
        if name in traces:
            return traces[name]
    return max(traces.values(), key=len, default=None)
