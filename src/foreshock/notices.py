"""Tells people of decisions, from threads of their own: a service that fails or hangs costs
the training nothing. What mirrors the run hears of each step too."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from foreshock.catalog import make
from foreshock.core.ladder import PAUSE
from foreshock.core.mirrored import MirroredRun
from foreshock.core.notice import (
    Place,
    advised,
    halted,
    paused,
    planned,
    recovered,
    to_strengthen,
    verification_failed,
)
from foreshock.core.sink import Channel, Notice, NoticeKind, NotSentError, Sink
from foreshock.mirroring import Limits, Mirroring

VARIABLE: Final = "FORESHOCK_NOTIFY"
"""Environment variable with apprise URLs, separated by white space."""

MAX_WAITING: Final = 32
"""Notices that may wait for one channel. Our choice: more than any incident sends."""

CLOSE_SECS: Final = 10.0
"""How long the end of a run waits for its last notices. Our choice: a connection and an answer
at apprise's own time-outs, of four seconds each."""

Tell = Callable[[str, Mapping[str, Any]], None]


def sinks_of(sinks: Sequence[Sink], environment: Mapping[str, str]) -> tuple[Sink, ...]:
    """The sinks of a recipe, and what the environment variable adds.

    Raises:
        ConfigError: the variable names no sink that can be used.
    """
    urls = tuple(environment.get(VARIABLE, "").split())
    return (*sinks, make("sinks", "apprise", urls=urls)) if urls else tuple(sinks)


class Notices:
    """Hears what a Guard tells, passes it on, and sends what people want to know.

    What was not delivered is counted and journalled (`notice_failed`), by channel and reason,
    never with an address. No notice is waited for but at the very end, and then not for long.

    Args:
        sinks: where notices go, and where the run is mirrored; none sends nothing.
        run_dir: the run, as messages call it.
        limits: thresholds to mirror; see `Mirroring`.
        record: `(kind, attempt, step, fields) ->` journals what was not delivered. Called in
            the thread that calls `tell`.
        tell: hears everything, as without notices.

    Raises:
        ConfigError: a sink cannot be used.
        MissingExtra: its package is not installed.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        run_dir: Path,
        limits: Limits,
        record: Callable[[str, int, int, dict[str, Any]], None],
        tell: Tell,
    ) -> None:
        self.num_failed = 0
        """Notices that were not delivered, each channel for itself."""
        self._place = Place(run=run_dir.name or str(run_dir), run_dir=str(run_dir))
        self._record = record
        self._tell = tell
        self._lanes = [_Lane(channel, sink.on) for sink in sinks for channel in sink.channels()]
        run = MirroredRun(name=self._place.run, run_dir=str(run_dir))
        self._mirroring = Mirroring(sinks, run, limits=limits, record=record)
        self._attempt = self._step = 0
        self._halted = False
        self._verification: Mapping[str, Any] | None = None

    def tell(self, kind: str, content: Mapping[str, Any]) -> None:
        """Take in what a Guard tells; see `Guard`'s listener."""
        self._tell(kind, content)
        if not self._lanes and not self._mirroring.is_on:
            return
        if kind == "step":
            row = content["row"]
            self._step = row.step
            self._mirroring.step(content["attempt"], content["series"], row, content["raised"])
        for notice in self._notices(kind, content):
            self._put(notice)
        self._journal_failures()

    def halted(self, note: str) -> None:
        """The run was handed over, by a plan or outside of one; told once."""
        if not self._halted:
            self._halted = True
            self._put(halted(self._place, self._step, note))

    def close(self, secs: float = CLOSE_SECS) -> None:
        """Give the last notices a while to go out; then journal what did not. No more follow."""
        for lane in self._lanes:
            lane.finish()
        until = time.monotonic() + secs
        self._mirroring.close(secs)
        for lane in self._lanes:
            lane.wait(max(0.0, until - time.monotonic()))
        self._journal_failures()
        self._lanes = []

    def _put(self, notice: Notice) -> None:
        for lane in self._lanes:
            lane.put(notice)
        self._mirroring.notice(notice)

    def _notices(self, kind: str, content: Mapping[str, Any]) -> list[Notice]:
        place, step = self._place, self._step
        match kind:
            case "plan":
                record = content["plan"]
                self._attempt = record.attempt
                if any(call.name == PAUSE for call in record.plan.actions):
                    return []  # told when it begins to wait
                notice = planned(place, content["incident"], record.plan, record.step)
                return [] if self._known_halt(notice) else [notice]
            case "waiting":
                record = content["plan"]
                self._attempt = max(self._attempt, record.attempt)
                timeout = content["timeout_secs"]
                return [paused(place, content["incident"], record.plan, record.step, timeout)]
            case "strengthen_data":
                return [to_strengthen(place, step, content)]
            case "advice":
                self._attempt = content["attempt"]
                return [advised(place, content)]
            case "verification":
                self._verification = content
                goes_on = content.get("again") and not content.get("reopens")
                if content["passed"] or goes_on:  # of which `strengthen_data` tells
                    return []
                return [verification_failed(place, content["incident"], step, content)]
            case "incident_closed" if content["outcome"] == "recovered":
                return [recovered(place, content["incident"], step, self._verification)]
            case "incident_closed":
                notice = halted(place, step, "")
                return [] if self._known_halt(notice) else [notice]
            case _:
                return []

    def _known_halt(self, notice: Notice) -> bool:
        known, self._halted = self._halted, self._halted or notice.kind is NoticeKind.HALTED
        return known and notice.kind is NoticeKind.HALTED

    def _journal_failures(self) -> None:
        for lane in self._lanes:
            while lane.failures:
                notice, reason = lane.failures.popleft()
                self.num_failed += 1
                fields = {"channel": lane.label, "notice": notice.kind.value, "reason": reason}
                self._record("notice_failed", self._attempt, self._step, fields)


class _Lane:
    """A channel with its thread and what waits for it."""

    def __init__(self, channel: Channel, on: Sequence[str]) -> None:
        self.label = channel.label
        self.failures: deque[tuple[Notice, str]] = deque()
        self._channel = channel
        self._on = frozenset(on)
        self._waiting: queue.Queue[Notice | None] = queue.Queue(MAX_WAITING)
        self._sending: Notice | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, notice: Notice) -> None:
        """Let a notice wait for its turn; where too many do, this one is not sent."""
        if notice.kind not in self._on:
            return
        if self._thread is None:  # a daemon: no service keeps the process from ending
            self._thread = threading.Thread(target=self._run, name="foreshock-notice", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(notice)
        except queue.Full:
            self.failures.append((notice, f"{MAX_WAITING} others wait for this service already"))

    def finish(self) -> None:
        """Nothing follows: let the thread end when it has sent what waits."""
        with suppress(queue.Full):  # then it is not waited for to its end either
            self._waiting.put_nowait(None)

    def wait(self, secs: float) -> None:
        """Wait for that; what was not sent by then has failed."""
        if self._thread is None:
            return
        self._thread.join(secs)
        if not self._thread.is_alive():
            return
        self._closed = True
        left = [self._sending]
        with suppress(queue.Empty):
            while True:
                left.append(self._waiting.get_nowait())
        for notice in left:
            if notice is not None:
                self.failures.append((notice, "the run ended before the service had answered"))

    def _run(self) -> None:
        while (notice := self._waiting.get()) is not None:
            self._sending = notice
            reason = self._send(notice)
            if self._closed:
                return
            if reason:
                self.failures.append((notice, reason))
            self._sending = None

    def _send(self, notice: Notice) -> str:
        """Send a notice; return why it was not delivered, without any address."""
        try:
            self._channel.send(notice)
        except NotSentError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__} (its text is kept back: it may hold the address)"
        return ""
