"""Compaction in the background, in a thread of its own that never harms the training.

A thread, because pyarrow lets go of the interpreter lock while it compresses; a child process
of a trainer would inherit its memory, devices and signals.
"""

import logging
import threading
from pathlib import Path
from typing import Final, final

from foreshock.compaction import Compaction
from foreshock.core.errors import JournalError
from foreshock.core.records import reading_size
from foreshock.core.segments import MIN_RECORDS, attempt_of, folder_of, sort_out, to_merge
from foreshock.durable import Disk

CLOSE_SECS: Final = 10.0
"""How long `Compactor.close` waits for the row group that is being written."""


class Stopped(Exception):  # noqa: N818 - it reports a wish, not a fault
    """Compaction was asked to stop; what it was writing is undone."""


@final
class Compactor:
    """Compacts in the background what is closed; its thread starts when there is work.

    It never raises, and never calls back: what went wrong is taken by `trouble`, once for each
    kind of trouble. Segments then stay as they are, which costs room and nothing else.

    Args:
        disk: where to; safe to use from several threads.
        folder: `readings` of the run directory, which this process has locked.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._state = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._due: set[int] = set()
        self._open: tuple[int, int] | None = None
        self._passed_over: set[Path] = set()
        self._trouble: list[str] = []
        self._told: set[str] = set()

    def take_up(self) -> None:
        """Compact what earlier processes left."""
        found = (attempt_of(name) for name in self._disk.list(self._folder))
        due = {attempt for attempt in found if attempt is not None and self._is_due(attempt)}
        self._start(due)

    def opened(self, attempt: int, segment: int) -> None:
        """Say which segment is written to from now on; the ones before it are closed."""
        with self._state:
            before, self._open = self._open, (attempt, segment)
        if before is not None:
            self._start({before[0]})

    def trouble(self) -> str | None:
        """What went wrong since the last call, in one sentence, or None."""
        with self._state:
            return self._trouble.pop() if self._trouble else None

    def wait(self, secs: float | None = None) -> bool:
        """Wait until nothing is left to do; whether that came about in time."""
        return self._idle.wait(secs)

    def close(self, secs: float = CLOSE_SECS) -> bool:
        """Stop, leaving the rest to the next process; whether the thread has ended.

        What is being written is given up at the next row group.
        """
        self._stop.set()
        self._wake.set()
        if self._thread is None:
            return True
        self._thread.join(secs)
        return not self._thread.is_alive()

    def _is_due(self, attempt: int) -> bool:
        """Whether there may be work; short segments are not worth starting for."""
        folder = self._folder / folder_of(attempt)
        try:
            pieces = sort_out(self._disk.list(folder))
            if pieces.replaced or to_merge(pieces.counting):
                return True
            segments = [piece for piece in pieces.counting if not piece.is_table]
            return any(self._is_long(folder / piece.name) for piece in segments)
        except (OSError, JournalError):
            return False

    def _is_long(self, path: Path) -> bool:
        return self._disk.size(path) >= MIN_RECORDS * reading_size(1)

    def _start(self, due: set[int]) -> None:
        if not due or self._stop.is_set():
            return
        with self._state:
            self._due |= due
            self._idle.clear()
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="foreshock-compaction", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            with self._state:
                due, self._due = self._due, set()
            for attempt in sorted(due):
                try:
                    self._work(attempt)
                except Stopped:
                    break
                except Exception as error:  # nothing here may ever harm the training
                    logging.getLogger("foreshock").debug("compaction failed", exc_info=True)
                    said = getattr(error, "strerror", None) or error
                    self._tell(type(error).__name__, f"{said}")
            with self._state:
                if not self._due:
                    self._idle.set()
        self._idle.set()

    def _work(self, attempt: int) -> None:
        work = Compaction(
            disk=self._disk,
            folder=self._folder / folder_of(attempt),
            attempt=attempt,
            check=self._check,
            passed_over=self._passed_over,
        )
        while self._disk.exists(work.folder):
            with self._state:
                now_open = self._open
            is_open = now_open is not None and now_open[0] == attempt
            if not work.next(now_open[1] - 1 if now_open is not None and is_open else None):
                return

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _tell(self, kind: str, text: str) -> None:
        with self._state:
            if kind not in self._told:
                self._told.add(kind)
                self._trouble.append(
                    f"{self._folder}: readings are kept, but not compacted: {text}"
                )
