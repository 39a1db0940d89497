"""What was found not to be needed is given back, by the run's journal or its next step."""

import multiprocessing
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from foreshock.core.errors import ForeshockError, RunDirError
from foreshock.core.minimal import Minimal
from foreshock.core.program import Settings
from foreshock.data.account import watermark_in
from foreshock.data.requests import RELEASE, Request, Requests
from foreshock.driver import build, load_program
from foreshock.durable import Disk, RealDisk
from foreshock.journal import Journal, RunView
from foreshock.minimal import BUDGET, minimize
from foreshock.recipes import Recipe, load
from foreshock.run_view import position_after

_NICENESS = 19


def give_back(
    run_dir: Path,
    found: Minimal,
    *,
    disk: Disk | None = None,
    clock: Callable[[], float] = time.time,
) -> bool:
    """Journal a result and release what is not needed; False if the run was asked to instead.

    In the journal of a run that stands still it is a `minimized` record, durable before the
    `released` ones that follow from it: after a crash in between, doing it again does the rest.
    A run that is going on has its directory locked. It is left a request to release the same
    samples, and takes that in between two steps; there is then no `minimized` record.

    Raises:
        RunDirError: the disk did not take it.
        JournalError: the run's records are damaged.
    """
    disk = disk if disk is not None else RealDisk()
    try:
        disk.lock(run_dir / "lock").close()
    except RunDirError:
        requests = Requests(disk, run_dir)
        for entry, keys in found.given_back.items():
            asked = Request(request=secrets.token_hex(8), command=RELEASE, entry_id=entry, ids=keys)
            requests.leave(asked)
        return False
    view = Journal.read(disk, run_dir)
    step, position = _end(view)
    with Journal.open(disk, run_dir, None, clock) as journal:
        stamp: dict[str, Any] = {"attempt": max(journal.last_attempt, 1), "step": step}
        journal.write("minimized", **stamp, **found.to_json())
        for entry, keys in found.given_back.items():
            ids = [list(key) for key in keys]
            journal.write("released", **stamp, entry_id=entry, ids=ids, position=position)
        journal.sync()
        if journal.backlog:
            raise RunDirError(f"{run_dir}: the disk did not take it; free some space, and repeat")
    return True


def in_background(
    run_dir: Path,
    program: str,
    settings: Settings,
    *,
    config: Path | None = None,
    incident: int | None = None,
    budget: int = BUDGET,
) -> BaseProcess:
    """Minimise in a process of its own, at the lowest priority, and give back what is found.

    A run may start it of itself once it has recovered: its own process, generators and device
    memory are left alone, and what is to be released comes to it as a request.

    Args:
        run_dir: the run.
        program: `PATH.py:function`.
        settings: those that the run was started with; `device` is where to replay.
        config: the recipe of the run as TOML.
        incident: see `minimize`.
        budget: see `minimize`.

    Returns:
        The process, started; its exit code is 1 if nothing could be done.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=_child,
        args=(run_dir, program, settings, config),
        kwargs={"incident": incident, "budget": budget},
        daemon=True,
    )
    process.start()
    return process


def _child(
    run_dir: Path,
    program: str,
    settings: Settings,
    config: Path | None,
    *,
    incident: int | None,
    budget: int,
) -> None:
    with suppress(AttributeError, OSError):
        os.nice(_NICENESS)
    recipe: Recipe | None = load(config) if config is not None else None
    try:
        built = build(load_program(program), settings)
        give_back(run_dir, minimize(run_dir, built, recipe, incident=incident, budget=budget))
    except (ForeshockError, OSError) as error:
        raise SystemExit(f"foreshock minimize: {error}") from error


def _end(view: RunView) -> tuple[int, int]:
    """The last step of a run and its watermark, by the last attempt that trained."""
    provenance = view.last_trained()
    return max(provenance, default=0), max(position_after(provenance), watermark_in(view.records))
