"""What `watch` keeps: readings and alarms in a run directory, written by one rank."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from foreshock.admission import open_journal, run_identity
from foreshock.core.detector import Alarm
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from foreshock.observation import Row

_ATTEMPT = 1


class WatchRecord:
    """The run directory of a loop that is only observed: one attempt, no decisions.

    Made by `begin`. A failing disk never stops the training: see `Journal`.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @classmethod
    def begin(
        cls,
        run_dir: Path,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        series: Sequence[str],
        *,
        lag_steps: int,
    ) -> "WatchRecord | None":
        """Begin a run directory; None on every rank but the first.

        Raises:
            RunDirError: it cannot be used: it must be new or empty.
        """
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if distributed and torch.distributed.get_rank() != 0:
            return None
        parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
        identity = run_identity("", parts, accumulate=1, lag_steps=lag_steps)
        journal = open_journal(RealDisk(), run_dir, identity, time.time, resume=False)
        journal.write("attempt_started", attempt=_ATTEMPT, step=0)
        journal.write(
            "run_started", attempt=_ATTEMPT, step=0, capabilities=["watch"], not_watched_yet={}
        )
        journal.open_readings(_ATTEMPT, series)
        return cls(journal)

    def take(self, row: Row, alarms: Sequence[Alarm]) -> None:
        """Keep one step, and the alarms that it raised."""
        self._journal.append_reading(row.step, int(row.committed), row.values)
        for alarm in alarms:
            self._journal.write(
                "alarm", attempt=_ATTEMPT, step=row.step, durable=False, alarm=alarm.to_json()
            )

    def tell(self, step: int, finding: str) -> None:
        """Keep a sentence on what is certainly wrong."""
        self._journal.write("finding", attempt=_ATTEMPT, step=step, what=finding)

    def close(self, last_step: int) -> None:
        """Record the end, make all durable, and free the directory."""
        self._journal.write("run_finished", attempt=_ATTEMPT, step=last_step, digest="")
        self._journal.close()
