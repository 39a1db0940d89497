"""Logs that a failing disk does not stop: one that waits, one that drops and counts.

Neither ever raises OSError. Both say so once per outage, through the `warn` they are given.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, final

from foreshock.core.errors import JournalError
from foreshock.core.records import encode_line
from foreshock.durable import AppendLog

Warn = Callable[[str], None]


@final
class WaitingLog:
    """A log of decisions that keeps, in order, what a failing disk does not take."""

    def __init__(self, log: AppendLog, warn: Warn) -> None:
        self.waiting: deque[tuple[dict[str, Any], bool]] = deque()
        self._unsynced: list[tuple[dict[str, Any], bool]] = []  # in the file, in doubt until a sync
        self._log = log
        self._warn = warn
        self._failing = False

    def put(self, record: dict[str, Any], *, durable: bool) -> None:
        """Write what waits, then this record; what the disk refuses goes on waiting."""
        self.waiting.append((record, durable))
        self._flush(sync=False)

    def sync(self) -> None:
        """Write what waits, and make every record so far durable."""
        self._flush(sync=True)

    def _flush(self, *, sync: bool) -> None:
        log = self._log
        try:
            while self.waiting:
                record, durable = self.waiting[0]
                unsynced = log.size - log.synced_size
                extra = {"unsynced_bytes": unsynced} if unsynced else {}
                log.append(encode_line(record | extra), durable=durable)
                self._unsynced.append(self.waiting.popleft())
                if durable:
                    self._unsynced.clear()
            if sync:
                log.sync()
                self._unsynced.clear()
            self._failing = False
        except BaseException as error:
            if log.size == log.synced_size:  # A failed sync took back all that was in doubt.
                self.waiting.extendleft(reversed(self._unsynced))
                self._unsynced.clear()
            if not isinstance(error, OSError):
                raise
            if not self._failing:
                self._failing = True
                self._warn(
                    f"{log.path}: {error.strerror or error}. Training goes on, and decisions wait "
                    f"in memory until the disk takes them."
                )


@final
class DroppingLog:
    """A log of many small records that counts what a failing disk does not take.

    An outage ends with the first sync that has something to do and succeeds.
    """

    def __init__(self, warn: Warn) -> None:
        self.dropped = 0
        self._log: AppendLog | None = None
        self._prepare: Callable[[], None] | None = None
        self._num_unsynced = 0
        self._warn = warn
        self._failing = False

    def begin(self, log: AppendLog, prepare: Callable[[], None] | None = None) -> None:
        """Make the log so far durable and go on in this one.

        `prepare` is called before the first record, again and again until it succeeds.
        """
        self.sync()
        self._log, self._prepare = log, prepare

    def append(self, record: bytes) -> None:
        """Write one record, not synced. Raises JournalError if no log was begun."""
        if self._log is None:
            raise JournalError("nothing is open to append to: call `open_provenance` first.")
        try:
            if self._prepare is not None:
                self._prepare()
                self._prepare = None
            self._log.append(record, durable=False)
            self._num_unsynced += 1
        except OSError as error:
            self._lose(self._log, 1, error)

    def sync(self) -> None:
        """Make every record so far durable."""
        if self._log is None or not self._num_unsynced:
            return
        try:
            self._log.sync()
            self._failing = False
        except OSError as error:
            self._lose(self._log, self._num_unsynced, error)
        self._num_unsynced = 0

    def _lose(self, log: AppendLog, num_records: int, error: OSError) -> None:
        self.dropped += num_records
        if not self._failing:
            self._failing = True
            self._warn(
                f"{log.path}: {error.strerror or error}. Training goes on, and records are "
                f"dropped and counted until the disk takes them."
            )
