"""Which ranks are still there: seen in the store through which they found each other."""

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

BEAT_SECS: Final = 1.0
"""Seconds between two signs of life. Our choice: one small message to the store a second."""
MISSED_BEATS: Final = 5
"""Signs of life that may be late before a rank counts as gone: no Python thread is starved
longer than that by a single operation, as a rule."""


class Absent(NamedTuple):
    """A rank that did not come.

    Attributes:
        rank: which.
        why: what is known of it, in words.
    """

    rank: int
    why: str


class Watchdog:
    """Gives signs of life, and tells who gave none; the only part that has a thread.

    Nobody is stopped by it. When a collective has failed or timed out, the ranks that are
    left ask it which ones are to blame: those that stopped for a reason of their own, those
    whose process gives no sign of life, else those that are alive but did not come.

    Args:
        store: a `torch.distributed.Store`, or anything with its `set`, `get` and `check`.
        rank: this process.
        size: all of them.
        clock: seconds that only rise.
        wait: `wait(secs)` pauses.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._clock = clock
        self._wait = wait
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to give signs of life."""
        self._set("beat", "0")
        self._thread = threading.Thread(target=self._beat, name="foreshock-watchdog", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # the store must not be used while the interpreter ends

    def close(self) -> None:
        """Give no more signs of life; a second call does nothing."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * BEAT_SECS)
            atexit.unregister(self.close)

    def arrive(self, number: int) -> None:
        """Say that this rank has come to a meeting, before it waits for the others."""
        self._set("at", str(number))

    def stopped(self, reason: str, *, own: bool) -> None:
        """Say that this rank stops: for a reason of its `own`, or since others did not come."""
        self._set("stopped", f"{'own' if own else 'others'}:{reason[:400]}")

    def absent(
        self, number: int | None, within_secs: float, *, overdue: bool = False
    ) -> list[Absent]:
        """Who did not come to a meeting, or, with None, has not stopped as well.

        Waits until everyone is accounted for, at most `within_secs`. An empty list if nobody
        can be told: the store does not answer, or all came.

        Args:
            number: of the meeting.
            within_secs: how long to look for them.
            overdue: whether they were waited for long enough already, so that whoever comes
                now is too late.
        """
        search = _Search(self._clock() + within_secs, number)
        others = [rank for rank in range(self._size) if rank != self._rank]
        try:
            while True:
                for rank in others:
                    if rank not in search.settled:
                        self._look(rank, search)
                search.late = overdue
                done = len(search.settled) == len(others)
                if done or self._clock() >= search.deadline:
                    break
                self._wait(BEAT_SECS / 10)
        except Exception:  # whatever the store raises when the rank that keeps it is gone
            return []
        if search.gone or done:
            return sorted(search.gone)
        late = [rank for rank in others if rank not in search.settled]
        return [Absent(rank, f"alive, but {self._last_seen(rank)}") for rank in late]

    def _look(self, rank: int, search: "_Search") -> None:
        now = self._clock()
        if (said := self._get("stopped", rank)) is not None:
            kind, _, reason = said.partition(":")
            search.settled.add(rank)
            if kind == "own":
                search.gone.append(Absent(rank, f"stopped: {reason}"))
            elif search.late:
                search.gone.append(Absent(rank, "alive, but came too late"))
            return
        if search.number is not None and int(self._get("at", rank) or -1) >= search.number:
            search.settled.add(rank)
            if search.late:
                search.gone.append(Absent(rank, "alive, but came too late"))
            return
        beat = self._get("beat", rank)
        if rank not in search.beats or search.beats[rank][0] != beat:
            search.beats[rank] = (beat, now)
        elif now - search.beats[rank][1] > MISSED_BEATS * BEAT_SECS:
            search.settled.add(rank)
            search.gone.append(Absent(rank, "no sign of life: its process is gone or frozen"))
            # Those that are not seen yet are slow rather than lost: no need to wait for them.
            search.deadline = min(search.deadline, now + MISSED_BEATS * BEAT_SECS)

    def _last_seen(self, rank: int) -> str:
        number = self._get("at", rank)
        return "was never seen" if number is None else f"last seen at meeting {number}"

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(BEAT_SECS):
            count += 1
            try:
                self._set("beat", str(count))
            except Exception:  # the rank that keeps the store is gone: the others will tell
                return

    def _set(self, kind: str, value: str) -> None:
        self._store.set(f"{kind}/{self._rank}", value)

    def _get(self, kind: str, rank: int) -> str | None:
        key = f"{kind}/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else None


class _Search:
    """What a search has found so far."""

    def __init__(self, deadline: float, number: int | None) -> None:
        self.deadline = deadline
        self.number = number
        self.late = False
        self.settled: set[int] = set()
        self.gone: list[Absent] = []
        self.beats: dict[int, tuple[str | None, float]] = {}
