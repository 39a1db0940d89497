"""Mirrors a run where people look anyway, from threads of their own: a destination that fails
or hangs costs the training nothing."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from foreshock.core.detector import Alarm
from foreshock.core.mirrored import MirroredNotice, MirroredRun, MirroredStep, encodable
from foreshock.core.sink import MirrorSink, Notice, Sink
from foreshock.mirror_lane import FIRST_WAIT_SECS, Lane

THRESHOLDS_EVERY_STEPS: Final = 20
"""Steps from one look at the thresholds to the next. Our choice: they are renewed every few
dozen values, and reading two thousand of them costs as much as judging five steps."""

TOLD_EVERY_SECS: Final = 60.0
"""A mirror that fails or drops is journalled at most this often."""

CLOSE_SECS: Final = 10.0
"""How long the end of a run waits for its mirrors, all together."""

Limits = Callable[[], NDArray[np.float64]]


class Row(Protocol):
    """A step as it was measured."""

    @property
    def step(self) -> int: ...

    @property
    def committed(self) -> bool: ...

    @property
    def values(self) -> NDArray[np.float32]: ...


class Mirroring:
    """Mirrors steps and notices in every sink that does.

    Nothing is waited for but at the very end, and then not for long; nothing is raised. What a
    mirror does not take is counted and journalled: `mirror_failed` says why, once until it
    works again, `mirror_dropped` how much was lost. Neither holds an address.

    Args:
        sinks: where the run is mirrored; those that mirror nothing are passed over.
        run: what it is called.
        limits: `() -> [S]` what a value of each series would have to exceed now; see
            `Monitor.limits`.
        record: `(kind, attempt, step, fields) ->` journals. Called by the training thread.
        clock: seconds since 1970.
        monotonic: seconds, for how often something is told.
        first_wait_secs: from a mirror's first failure to the next try.

    Raises:
        ConfigError: a sink cannot be used.
        MissingExtra: its package is not installed.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        run: MirroredRun,
        *,
        limits: Limits,
        record: Callable[[str, int, int, dict[str, Any]], None],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        first_wait_secs: float = FIRST_WAIT_SECS,
    ) -> None:
        self._limits, self._record = limits, record
        self._clock, self._monotonic = clock, monotonic
        self._lanes = [
            Lane(mirror, sink, first_wait_secs=first_wait_secs)
            for sink in sinks
            if isinstance(sink, MirrorSink)
            for mirror in sink.mirrors(run)
        ]
        self._looks = any(lane.wants_thresholds for lane in self._lanes)
        self._told: dict[tuple[int, str], float] = {}
        self._known: tuple[Sequence[str], tuple[str, ...]] = (), ()
        self._attempt = self._step = 0

    @property
    def is_on(self) -> bool:
        """Whether anything is mirrored."""
        return bool(self._lanes)

    def step(self, attempt: int, series: Sequence[str], row: Row, alarms: Sequence[Alarm]) -> None:
        """Mirror a step, whose values of these series `[S]` nobody changes any more."""
        if not self._lanes:
            return
        if not self._attempt:
            for lane in self._lanes:
                lane.adopt()
        is_due = attempt != self._attempt or row.step % THRESHOLDS_EVERY_STEPS == 0
        self._attempt, self._step = attempt, row.step
        mirrored = MirroredStep(
            attempt=attempt,
            step=row.step,
            time_secs=self._clock(),
            committed=row.committed,
            alarms=tuple(replace(one, series=encodable(one.series)) for one in alarms),
            series=self._names(series),
            values=row.values,
            thresholds=self._thresholds() if self._looks and is_due else None,
        )
        for lane in self._lanes:
            lane.put_step(mirrored)
        self._journal()

    def notice(self, notice: Notice) -> None:
        """Mirror a decision, as people are told of it."""
        words = {"title": encodable(notice.title), "body": encodable(notice.body)}
        said = MirroredNotice(
            attempt=self._attempt,
            step=self._step,
            time_secs=self._clock(),
            notice=replace(notice, **words),
        )
        for lane in self._lanes:
            lane.put_notice(said)

    def close(self, secs: float = CLOSE_SECS) -> None:
        """Give the mirrors a while to take what waits; then journal what was lost."""
        for lane in self._lanes:
            lane.finish()
        until = self._monotonic() + secs
        for lane in self._lanes:
            lane.wait(max(0.0, until - self._monotonic()))
        self._journal(last=True)
        self._lanes = []

    def _names(self, series: Sequence[str]) -> tuple[str, ...]:
        if self._known[0] is not series:
            self._known = series, tuple(encodable(name) for name in series)
        return self._known[1]

    def _thresholds(self) -> NDArray[np.float64] | None:
        try:
            return self._limits()
        except Exception as error:  # a mirror that lacks them is better than a run that ends
            self._looks = False
            fields = {"mirror": "thresholds", "reason": type(error).__name__}
            self._record("mirror_failed", self._attempt, self._step, fields)
            return None

    def _journal(self, *, last: bool = False) -> None:
        now = self._monotonic()
        for number, lane in enumerate(self._lanes):
            if self._is_due(number, "mirror_failed", now, last) and (why := lane.take_failure()):
                self._say(number, "mirror_failed", now, {"mirror": lane.label, "reason": why})
            if self._is_due(number, "mirror_dropped", now, last) and (lost := lane.take_dropped()):
                self._say(number, "mirror_dropped", now, {"mirror": lane.label, **vars(lost)})

    def _is_due(self, number: int, kind: str, now: float, last: bool) -> bool:
        told = self._told.get((number, kind))
        return last or told is None or now - told >= TOLD_EVERY_SECS

    def _say(self, number: int, kind: str, now: float, fields: dict[str, Any]) -> None:
        self._told[number, kind] = now
        self._record(kind, self._attempt, self._step, fields)
