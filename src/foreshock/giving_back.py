"""What was found not to be needed is given back, by the run's journal or its next step."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from foreshock.core.errors import RunDirError, StreamError
from foreshock.core.minimal import Minimal
from foreshock.data.account import watermark_in
from foreshock.data.journalled import data_of
from foreshock.data.minimized import Minimized
from foreshock.data.requests import Requests
from foreshock.durable import Disk, RealDisk
from foreshock.journal import Journal, RunView
from foreshock.run_view import position_after
from foreshock.vetting import vet


def give_back(
    run_dir: Path,
    found: Minimal,
    *,
    disk: Disk | None = None,
    clock: Callable[[], float] = time.time,
) -> bool:
    """Journal a finding and give back what is not needed; False if the run was asked to instead.

    What lies ahead of the run is released; what it has skipped comes back beside other samples
    and is watched (`data.returns.given_back`). The `minimized` record comes last: after a crash
    in between, doing it again does the rest. A run that is going on has its directory locked,
    and takes the finding in between two steps.

    Raises:
        RunDirError: the disk did not take it.
        JournalError: the run's records are damaged.
        StreamError: the incident has gone on since, or the finding is not of this run.
    """
    disk = disk if disk is not None else RealDisk()
    try:
        disk.lock(run_dir / "lock").close()
    except RunDirError:
        leave(run_dir, found, disk=disk)
        return False
    finding = Minimized(request=secrets.token_hex(8), found=found)
    step, position = _end(Journal.read(disk, run_dir))
    with Journal.open(disk, run_dir, None, clock) as journal:
        vet(journal.records, run_dir)
        order, ledger = data_of(journal.identity["stream"], journal.records)
        if finding.must_wait(journal.records):
            raise StreamError(
                f"{run_dir}: an incident is open; resume the run, and give back what was found "
                "once it has recovered"
            )
        attempt = max(journal.last_attempt, 1)
        for kind, fields in finding.records(ledger, order, position, journal.records):
            journal.write(kind, attempt=attempt, step=step, **fields)
        journal.sync()
        if journal.backlog:
            raise RunDirError(f"{run_dir}: the disk did not take it; free some space, and repeat")
    return True


def leave(run_dir: Path, found: Minimal, *, disk: Disk | None = None) -> None:
    """Leave a finding for the run, whether it is going on or is resumed later.

    Raises:
        OSError: the disk failed.
        StreamError: it is too long, or the folder of requests is a link.
    """
    disk = disk if disk is not None else RealDisk()
    Requests(disk, run_dir).leave(Minimized(request=secrets.token_hex(8), found=found))


def _end(view: RunView) -> tuple[int, int]:
    """The last step of a run and its watermark, by the last attempt that trained."""
    provenance = view.last_trained()
    return max(provenance, default=0), max(position_after(provenance), watermark_in(view.records))
