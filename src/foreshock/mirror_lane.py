"""One mirror with its thread and what waits for it: bounded, and tried again when it fails."""

import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from foreshock.core.mirrored import Mirrored, MirroredNotice, MirroredStep
from foreshock.core.series_choice import SeriesChoice
from foreshock.core.sink import Mirror, MirrorSink, NotMirroredError

MAX_STEPS: Final = 256
"""Steps whose readings may wait for one mirror. Our choice: the last minutes of a run, and 1 MB
where a thousand series are measured."""

MAX_SAID: Final = 256
"""Notices, and alarms whose readings were dropped, that may wait."""

BATCH: Final = 32
"""Steps and notices that a mirror is given at once."""

LINGER_SECS: Final = 0.2
"""How long the first of a batch waits for more: fewer turns taken from the training."""

MAX_TRIES: Final = 3
"""How often a mirror that is open is given the same again."""

FIRST_WAIT_SECS: Final = 1.0
LAST_WAIT_SECS: Final = 60.0
"""Between two tries; the first doubles up to the last."""


@dataclass(kw_only=True)
class Dropped:
    """What a mirror was not given, or did not take."""

    num_steps: int = 0
    num_readings: int = 0
    num_alarms: int = 0
    num_notices: int = 0

    def __bool__(self) -> bool:
        return any(vars(self).values())


class Lane:
    """Lets steps and notices wait for a mirror, and hands them over in a thread of its own.

    Where too many wait, the oldest readings are dropped: what is mirrored late matters less
    than what happens now. Alarms and notices have room of their own.

    Args:
        mirror: where they go.
        sink: what of a run it is given.
        first_wait_secs: from a failure to the next try.
    """

    def __init__(
        self, mirror: Mirror, sink: MirrorSink, *, first_wait_secs: float = FIRST_WAIT_SECS
    ) -> None:
        self.label = mirror.label
        self.wants_thresholds = sink.thresholds
        self._mirror = mirror
        self._every_steps = sink.every_steps
        self._on = frozenset(sink.on)
        self._choice = SeriesChoice(sink.series)
        self._first_wait_secs = self._wait_secs = first_wait_secs
        self._change = threading.Condition()
        self._steps: deque[tuple[int, MirroredStep]] = deque()
        self._said: deque[tuple[int, Mirrored]] = deque()
        self._in_hand: Sequence[Mirrored] = ()
        self._number = 0
        self._dropped = Dropped()
        self._failure = ""
        self._is_failing = False
        self._finishing = self._abandoned = False
        self._thread: threading.Thread | None = None

    def adopt(self) -> None:
        """Let the mirror look for a logger that the loop has already; never raises."""
        try:
            self._mirror.adopt()
        except Exception as error:
            self._fail(error)

    def put_step(self, step: MirroredStep) -> None:
        """Let a step wait for its turn."""
        if step.step % self._every_steps and not step.alarms:
            return
        with self._change:
            self._number += 1
            self._steps.append((self._number, step))
            if len(self._steps) > MAX_STEPS:
                self._drop_oldest()
            self._wake()

    def put_notice(self, notice: MirroredNotice) -> None:
        """Let a notice wait for its turn."""
        if notice.notice.kind not in self._on:
            return
        with self._change:
            self._number += 1
            self._say(self._number, notice)
            self._wake()

    def finish(self) -> None:
        """Nothing follows: let the thread end when it has handed over what waits."""
        with self._change:
            self._finishing = True
            self._change.notify()

    def wait(self, secs: float) -> None:
        """Wait for that; what was not handed over by then is dropped."""
        if self._thread is None:
            return
        self._thread.join(secs)
        with self._change:
            if not self._thread.is_alive():
                return
            self._abandoned = True
            for said in (*self._in_hand, *self._take(len(self._steps) + len(self._said))):
                self._count(said)
            self._in_hand = ()
            self._told_as_failure("the run ended before it had taken everything")

    def take_failure(self) -> str:
        """Why it does not take anything, without any address; empty if that was told already."""
        with self._change:
            told, self._failure = self._failure, ""
            return told

    def take_dropped(self) -> Dropped:
        """What was dropped since the last time this was asked."""
        with self._change:
            told, self._dropped = self._dropped, Dropped()
            return told

    def _wake(self) -> None:
        if self._thread is None:  # a daemon: no mirror keeps the process from ending
            self._thread = threading.Thread(target=self._run, name="foreshock-mirror", daemon=True)
            self._thread.start()
        if len(self._steps) + len(self._said) in (1, BATCH):
            self._change.notify()

    def _drop_oldest(self) -> None:
        number, step = self._steps.popleft()
        self._count(dataclasses.replace(step, alarms=()))
        if step.alarms:
            self._say(number, _alarms_only(step))

    def _say(self, number: int, said: Mirrored) -> None:
        place = len(self._said)
        while place and self._said[place - 1][0] > number:  # of a step that was dropped late
            place -= 1
        self._said.insert(place, (number, said))
        if len(self._said) > MAX_SAID:
            _, lost = self._said.popleft()
            self._count(lost)

    def _count(self, said: Mirrored) -> None:
        if isinstance(said, MirroredNotice):
            self._dropped.num_notices += 1
            return
        self._dropped.num_alarms += len(said.alarms)
        if said.series:  # of one without, the readings have been counted
            self._dropped.num_steps += 1
            self._dropped.num_readings += self._choice.of(said).num_readings

    def _take(self, limit: int) -> list[Mirrored]:
        """The next that wait, in the order in which they happened."""
        taken: list[Mirrored] = []
        while len(taken) < limit and (self._steps or self._said):
            steps_first = not self._said or (
                bool(self._steps) and self._steps[0][0] < self._said[0][0]
            )
            taken.append(self._steps.popleft()[1] if steps_first else self._said.popleft()[1])
        return taken

    def _run(self) -> None:
        while not self._tried(self._mirror.open):
            if not self._pause():
                self._lose(self._take(len(self._steps) + len(self._said)))
                return
        self._wait_secs = self._first_wait_secs
        while (batch := self._next()) is not None:
            self._hand_over(batch)
        self._tried(self._mirror.close)

    def _next(self) -> list[Mirrored] | None:
        with self._change:
            while not (self._steps or self._said):
                if self._finishing:
                    return None
                self._change.wait()
            if not self._finishing and len(self._steps) + len(self._said) < BATCH:
                self._change.wait(LINGER_SECS)
            batch = self._take(BATCH)
            self._in_hand = batch
            return batch

    def _hand_over(self, batch: Sequence[Mirrored]) -> None:
        chosen = [
            said if isinstance(said, MirroredNotice) else self._choice.of(said) for said in batch
        ]
        for _ in range(MAX_TRIES):
            if self._tried(lambda: self._mirror.take(chosen)):
                with self._change:
                    self._in_hand, self._is_failing = (), False
                self._wait_secs = self._first_wait_secs
                return
            self._pause()
        self._lose(self._in_hand)

    def _lose(self, lost: Sequence[Mirrored]) -> None:
        with self._change:
            for said in lost:
                self._count(said)
            self._in_hand = ()

    def _pause(self) -> bool:
        """Wait until the next try, each time twice as long; False if there is none, as the run
        ends."""
        with self._change:
            self._change.wait_for(lambda: self._finishing, self._wait_secs)
            self._wait_secs = min(2 * self._wait_secs, LAST_WAIT_SECS)
            return not self._finishing

    def _tried(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except (Exception, SystemExit) as error:
            self._fail(error)
            return False
        return True

    def _fail(self, error: BaseException) -> None:
        with self._change:
            self._told_as_failure(_reason(error))

    def _told_as_failure(self, reason: str) -> None:
        if not self._is_failing:
            self._is_failing, self._failure = True, reason


def _alarms_only(step: MirroredStep) -> MirroredStep:
    return dataclasses.replace(step, series=(), values=np.empty(0, np.float32), thresholds=None)


def _reason(error: BaseException) -> str:
    """What went wrong, without any address."""
    if isinstance(error, NotMirroredError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__} (its text is kept back: it may hold the address)"
