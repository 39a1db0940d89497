"""The search for the needed samples, in a process of its own behind the run.

The run starts it, looks after it and takes in what it finds; nothing of the run waits for it.
"""

import os
import secrets
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, final

from foreshock.core.errors import StreamError
from foreshock.core.incident import Incident, IncidentBook, Outcome
from foreshock.core.program import Settings
from foreshock.data.journalled import data_of
from foreshock.data.minimized import DROPPED, MINIMIZED, Dropped, Minimized, entries_of
from foreshock.data.requests import Requests
from foreshock.durable import Disk, RealDisk
from foreshock.run_view import read_identity

NICENESS: Final = 19
MINUTES: Final = 30.0
"""Of wall time for one search. Our choice: some sixty replays of sixty steps of half a second."""

ORPHANED: Final = 75
"""Exit code of a search whose run has ended (EX_TEMPFAIL)."""

_NOTHING_FOUND: Final = 1
_REFUSED: Final = 2
_MOST_TRIES: Final = 2
"""One that was killed is started once more: it may have been the machine's doing."""
_GRACE: Final = 2.0
"""A search ends by itself when its time is up; it is killed at twice that."""

_RANK_VARIABLES: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
_LAUNCHERS: Final = ("TORCHELASTIC_", "PMI_", "PMIX_", "OMPI_COMM_", "SLURM_PROC", "SLURM_NTASKS")
_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

Tell = Callable[[str], None]
Records = Callable[[], Sequence[Mapping[str, Any]]]


def minimize_command(
    run_dir: Path,
    program: str,
    settings: Settings,
    *,
    config: Path | None,
    overrides: Sequence[str],
    minutes: float,
) -> list[str]:
    """The command line that searches behind a run; the number of the incident is added to it.

    Args:
        run_dir: the run.
        program: `PATH.py:function`.
        settings: those that the run was started with; the replays are on the CPU.
        config: the recipe of the run as TOML.
        overrides: NAME=VALUE, as they were given.
        minutes: of wall time.
    """
    start = "from foreshock.cli.main import app; app()"
    command = [sys.executable, "-c", start, "minimize", str(run_dir), "--program", program]
    command += ["--seed", str(settings.seed), "--max-steps", str(settings.max_steps)]
    command += ["--device", "cpu", "--minutes", str(minutes), "--behind-run"]
    if config is not None:
        command += ["--config", str(config)]
    for one in overrides:
        command += ["--set", one]
    return [*command, "--incident"]


@final
class BackgroundSearch:
    """Starts a search for each incident that was recovered from, one after the other.

    Which one is due is told from the journal and the requests alone: recovered from, samples
    held, and no finding or word that there is none since its last plan. So a run that was
    killed starts its search again, and one whose finding lies there already does not. One that
    was killed itself is tried once more, then dropped with the reason, which is left for the
    journal as a request. Only one process of a run has one of these: on several ranks the first.

    The process is of the lowest priority, on one thread of the CPU (an accelerator's memory is
    the training's), without the variables that would make it a rank, and ends when the run
    does, however the run ends.

    Args:
        command: what is started, the number of the incident added at its end.
        run_dir: the run.
        secs: of wall time that one may take; it is killed at twice that.
        tell: hears, in a sentence, of what is started and what came of it.
        disk: where requests lie.
        clock: seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        run_dir: Path,
        *,
        secs: float = 60 * MINUTES,
        tell: Tell = lambda _: None,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = list(command)
        self._run_dir = run_dir
        self._secs = secs
        self._tell = tell
        self._disk = disk if disk is not None else RealDisk()
        self._requests = Requests(self._disk, run_dir)
        self._clock = clock
        self._tries: dict[tuple[int, int], int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._started = 0.0
        self._case = (0, 0)
        self._is_due = True
        self._has_failed = False

    @property
    def pid(self) -> int | None:
        """The process that is searching, if one is."""
        return None if self._process is None else self._process.pid

    def look(self, kind: str, records: Records) -> None:
        """Look after the search; call it with every kind of thing that a run tells.

        A system call while one is under way, nothing otherwise, but where an incident has just
        changed. Never raises: what fails here is told, and there is no search any more.

        Args:
            kind: what the run tells.
            records: gives everything that it has journalled.
        """
        if self._has_failed:
            return
        try:
            self._look(kind, records)
        except Exception as error:
            self._has_failed = True
            self._tell(f"no search behind this run any more: {type(error).__name__}: {error}")
            self.close()

    def _look(self, kind: str, records: Records) -> None:
        if kind in ("incident_closed", "plan", "verification", MINIMIZED, DROPPED):
            self._is_due = True
            self._stop_outdated(records)
        if kind != "step":
            return
        if self._process is not None:
            self._look_after(self._process)
        if self._process is None and self._is_due:
            self._is_due = False
            incident = self._next(records())
            if incident is not None:
                self._start(incident)

    def close(self) -> int | None:
        """End the search with the run; return the number of the incident it was for, if any."""
        if self._process is None:
            return None
        incident = self._case[0]
        self._kill()
        return incident

    def _next(self, records: Sequence[Mapping[str, Any]]) -> Incident | None:
        """The oldest incident that is due, of which nothing waits, and that may be tried."""
        stream = read_identity(self._disk, self._run_dir).get("stream")
        found = due(records, stream) if isinstance(stream, dict) else []
        left = [one for one in found if self._tries.get(_case_of(one), 0) < _MOST_TRIES]
        waiting = self._waiting() if left else set[tuple[int, int]]()
        return next((one for one in left if _case_of(one) not in waiting), None)

    def _waiting(self) -> set[tuple[int, int]]:
        """Incidents, with their number of plans, of which a finding waits to be taken in."""
        found: set[tuple[int, int]] = set()
        for request in self._requests.look():
            if isinstance(request, Minimized):
                found.add((request.found.incident, request.found.num_plans))
            elif isinstance(request, Dropped):
                found.add((request.incident, request.num_plans))
        return found

    def _start(self, incident: Incident) -> None:
        self._case = _case_of(incident)
        self._tries[self._case] = self._tries.get(self._case, 0) + 1
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the program that the user runs
                [*self._command, str(incident.id)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=alone(os.environ),
                start_new_session=True,
            )
        except OSError as error:
            self._said.close()
            self._drop(f"the search could not be started: {error}")
            return
        self._started = self._clock()
        self._tell(f"incident {incident.id}: searching behind the run for the samples it needs")

    def _look_after(self, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        if code is None:
            if self._clock() - self._started > _GRACE * self._secs:
                self._kill()
                self._drop(f"the search took over {_GRACE * self._secs:.0f} seconds")
            return
        said = self._last_words()
        self._forget()
        if code in (0, _NOTHING_FOUND):
            self._is_due = True  # the finding lies there, and another incident may wait
        elif code == _REFUSED:
            self._drop(said or "the search was refused")
        elif self._tries[self._case] < _MOST_TRIES:
            self._is_due = True
        else:
            self._drop(f"the search ended with exit code {code}, twice; {said}")

    def _drop(self, reason: str) -> None:
        number, num_plans = self._case
        self._tell(f"incident {number}: not minimized: {reason}")
        self._tries[self._case] = _MOST_TRIES
        self._is_due = True
        dropped = Dropped(
            request=secrets.token_hex(8), incident=number, num_plans=num_plans, reason=reason
        )
        with suppress(OSError, StreamError):  # then a resume tries once more
            self._requests.leave(dropped)

    def _stop_outdated(self, records: Records) -> None:
        """End a search whose incident has gone on."""
        if self._process is None:
            return
        book = IncidentBook(records())
        still = any(_case_of(one) == self._case for one in book.incidents if _is_over(one))
        if not still:
            self._kill()

    def _kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._forget()

    def _forget(self) -> None:
        assert self._process is not None
        assert self._said is not None
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._said.close()
        self._process = self._said = None

    def _last_words(self) -> str:
        assert self._said is not None
        with suppress(OSError):
            self._said.seek(0, os.SEEK_END)
            self._said.seek(max(0, self._said.tell() - 4000))
            lines = self._said.read().decode(errors="replace").split("\n")
            words = [line.strip() for line in lines if line.strip()]
            return words[-1].removeprefix("foreshock: ") if words else ""
        return ""


def due(records: Sequence[Mapping[str, Any]], stream: Mapping[str, Any]) -> list[Incident]:
    """The recovered incidents that hold samples, and of which no search has told anything yet.

    None are while an incident is open.

    Args:
        records: the run's records, in order.
        stream: what describes its data, as `run.json` has it.
    """
    book = IncidentBook(records)
    if book.open is not None:
        return []
    told = {
        (one.get("incident"), one.get("num_plans"))
        for one in records
        if one["kind"] in (MINIMIZED, DROPPED)
    }
    found = [one for one in book.incidents if _is_over(one) and _case_of(one) not in told]
    if not found:
        return []
    holding = _holding(records, stream)
    return [one for one in found if not holding.isdisjoint(entries_of(one))]


def behind_run() -> None:
    """Make of this process one that searches behind a run: for its own priority and end.

    Its standard input is a pipe from the run. When that closes, the run has ended, however it
    did, and this process ends too.
    """
    with suppress(AttributeError, OSError):
        os.nice(NICENESS)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment of one process on one thread of the CPU, which is no rank of anything."""
    dropped = (*_RANK_VARIABLES, "MASTER_ADDR", "MASTER_PORT", "FORESHOCK_NOTIFY")
    kept = {
        name: value
        for name, value in environment.items()
        if name not in dropped and not name.startswith(_LAUNCHERS)
    }
    return {**kept, **dict.fromkeys(_THREAD_VARIABLES, "1"), "CUDA_VISIBLE_DEVICES": ""}


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], 1.0)
        if readable and not os.read(0, 1):
            break
    os._exit(ORPHANED)


def _is_over(incident: Incident) -> bool:
    return incident.outcome is Outcome.RECOVERED


def _case_of(incident: Incident) -> tuple[int, int]:
    return incident.id, len(incident.plans)


def _holding(records: Sequence[Mapping[str, Any]], stream: Mapping[str, Any]) -> set[str]:
    """Entries that hold a sample which is not coming back."""
    _, ledger = data_of(stream, records)
    return {
        one.entry_id
        for one in ledger.entries
        if set(ledger.held_by(one.entry_id)) - ledger.coming_back(one.entry_id)
    }
