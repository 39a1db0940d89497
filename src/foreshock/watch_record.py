"""What `watch` keeps: readings and alarms in a run directory, written by one rank."""

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from foreshock.admission import open_journal, run_identity
from foreshock.core.detector import Alarm
from foreshock.core.mirrored import MirroredRun
from foreshock.core.sink import Sink
from foreshock.core.starts import STARTED
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from foreshock.mirroring import Limits, Mirroring
from foreshock.observation import Row
from foreshock.ranks.exchange import own_index
from foreshock.replicated import plain_module
from foreshock.starts import start_of

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
        world = torch.distributed.get_world_size() if distributed else 1
        start = start_of(plain_module(model), optimizer, num_ranks=world)
        told: dict[str, Any] = {**start}
        journal.write(STARTED, attempt=_ATTEMPT, step=0, **told)
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

    def mirror(self, kind: str, attempt: int, step: int, fields: dict[str, Any]) -> None:
        """Keep what became of a mirror."""
        self._journal.write(kind, attempt=attempt, step=step, durable=False, **fields)

    def close(self, last_step: int) -> None:
        """Record the end, make all durable, and free the directory."""
        self._journal.write("run_finished", attempt=_ATTEMPT, step=last_step, digest="")
        self._journal.close()


def mirrors_of(
    sinks: Sequence[Sink], run_dir: str | Path | None, limits: Limits, record: WatchRecord | None
) -> Mirroring:
    """Where the first rank mirrors the loop. What goes wrong is journalled, or warned of where
    there is no run directory.

    Raises:
        ConfigError: a sink cannot be used.
        MissingExtra: its package is not installed.
    """

    def warn(kind: str, attempt: int, step: int, fields: dict[str, Any]) -> None:
        warnings.warn(f"step {step}: {kind}: {fields}", stacklevel=2)

    return Mirroring(
        sinks if own_index(None) == 0 else (),
        MirroredRun(name=Path(run_dir or "watch").name, run_dir=str(run_dir or "")),
        limits=limits,
        record=warn if record is None else record.mirror,
    )
