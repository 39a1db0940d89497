"""Where readings are appended: a segment at a time, handed on to be compacted when it is full."""

from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from foreshock.compactor import Compactor
from foreshock.core.errors import JournalError
from foreshock.core.records import encode_reading, encode_readings_header
from foreshock.core.segments import attempt_of, folder_of, is_full, segment
from foreshock.durable import AppendLog, Disk, clean_leftovers
from foreshock.files import refuse_links
from foreshock.outage import DroppingLog, Warn


@final
class ReadingsLog:
    """The readings of a run in progress; a failing disk never raises, it drops and counts.

    Appending costs one system call. When a segment is full it is made durable and the next
    one begun, both in the caller's thread, once in 16 MiB or 8192 steps; the rest is the
    compactor's.

    Args:
        disk: where to.
        folder: `readings` of the run directory.
        warn: called once an outage, and once if compaction fails; in the caller's thread.
    """

    def __init__(self, disk: Disk, folder: Path, warn: Warn) -> None:
        self._disk = disk
        self._folder = folder
        self._warn = warn
        self._log = DroppingLog(warn)
        self._compactor = Compactor(disk, folder)
        self._attempt = self._segment = self._num_records = 0
        self._series: tuple[str, ...] = ()
        for name in disk.list(folder):
            if attempt_of(name) is not None:
                refuse_links(folder / name)
                clean_leftovers(disk, folder / name)
        self._compactor.take_up()

    @property
    def dropped(self) -> int:
        """The number of steps that a failing disk did not take."""
        return self._log.dropped

    def begin(self, attempt: int, series: Sequence[str]) -> None:
        """Begin an attempt, and make the one before durable. The caller sees that it is new."""
        encode_readings_header(attempt, series)  # raises for names that cannot be
        self._attempt, self._series = attempt, tuple(series)
        self._next_segment(1)

    def append(self, step: int, flags: int, values: npt.NDArray[np.float32]) -> None:
        """Record one step; microseconds, not synced.

        Raises:
            JournalError: the number of values is not that of the series.
        """
        if not self._series or values.shape != (len(self._series),):
            raise JournalError(
                f"step {step} gives values of shape {values.shape}, and {len(self._series)} series "
                f"are open: call `open_readings` first, and give one value for each."
            )
        if is_full(self._num_records, len(self._series)):
            self._next_segment(self._segment + 1)
        dropped = self._log.dropped
        self._log.append(encode_reading(step, flags, values))
        self._num_records += self._log.dropped == dropped

    def sync(self) -> None:
        """Make every reading so far durable."""
        self._log.sync()
        self._pass_on()

    def close(self) -> bool:
        """Make everything durable and stop compacting; whether nothing is written any more."""
        self._log.sync()
        ended = self._compactor.close()
        self._pass_on()
        return ended

    def wait(self, secs: float | None = None) -> bool:
        """Wait until every closed segment is compacted; whether that came about in time."""
        return self._compactor.wait(secs)

    def _next_segment(self, number: int) -> None:
        folder = self._folder / folder_of(self._attempt)
        header = encode_readings_header(self._attempt, self._series, number)
        log = AppendLog(self._disk, folder / segment(number).name, header=header)
        self._log.begin(log, self._make_folder if number == 1 else None)
        self._segment, self._num_records = number, 0
        self._compactor.opened(self._attempt, number)
        self._pass_on()

    def _make_folder(self) -> None:
        self._disk.make_dir(self._folder / folder_of(self._attempt))
        self._disk.sync_dir(self._folder)  # it may be there from a try whose last step failed

    def _pass_on(self) -> None:
        if trouble := self._compactor.trouble():
            self._warn(trouble)
