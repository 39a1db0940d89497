"""Runs trials side by side, each in a process of its own kind, and keeps what came of each."""

import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import Progress

from benchmarks.recovery.corrupt import Subject, corrupt_trial, plain_subject, sharded_subject
from benchmarks.recovery.full import full_trial
from benchmarks.recovery.kill import Reference, kill_trial, undisturbed
from benchmarks.recovery.power import power_trial, undisturbed_on_simulated
from benchmarks.recovery.results import Results
from benchmarks.recovery.training import Layout, text_windows

GROUPS: dict[str, tuple[int, Layout]] = {
    "one-1": (1, "one"),
    "ddp-2": (2, "ddp"),
    "ddp-4": (4, "ddp"),
    "fsdp2-2": (2, "fsdp2"),
    "fsdp2-4": (4, "fsdp2"),
}
"""Ranks and layout of the runs that real kills strike, by name."""
KILLS = {"one-1": 60, "ddp-2": 40, "ddp-4": 16, "fsdp2-2": 24, "fsdp2-4": 10, "power-1": 100}
QUICK_KILLS = {"one-1": 5, "ddp-2": 3, "ddp-4": 1, "fsdp2-2": 2, "fsdp2-4": 0, "power-1": 16}
CORRUPT = {"plain": 500, "sharded": 500}
QUICK_CORRUPT = {"plain": 100, "sharded": 100}
FULL, QUICK_FULL = 60, 10

Trial = Callable[[], dict[str, Any]]


class Todo(NamedTuple):
    """Trials that are to be made.

    Attributes:
        name: for the progress shown.
        trials: what to call, by key; it is called in another process.
    """

    name: str
    trials: dict[str, Trial]


class Place:
    """Where trials find what they need; made once, and taken down at the end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        self.text = self.path / "text.bin"
        text_windows(self.text)

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def kill_trials(place: Place, store: Results, *, quick: bool) -> Iterable[Todo]:
    """Real kills, by ranks and layout, then losses of power. A layout that cannot be run is
    kept as unavailable, with its error."""
    for name, number in (QUICK_KILLS if quick else KILLS).items():
        keys = _missing(store, f"kill/{name}", number)
        if not keys:
            continue
        if name == "power-1":
            text = place.text.read_bytes()
            simulated = undisturbed_on_simulated(text)
            trials = {key: partial(power_trial, key, simulated, text) for key in keys}
            yield Todo("losses of power", {**trials})
            continue
        reference: Reference = undisturbed(*GROUPS[name], place.text)
        store.add(f"unavailable/{name}", reference.error)
        if not reference.error:
            real = {key: partial(kill_trial, key, reference, place.text) for key in keys}
            yield Todo(f"kills {name}", {**real})


def corrupt_trials(place: Place, store: Results, *, quick: bool) -> Iterable[Todo]:
    """Damage to plain and to sharded snapshots."""
    makers: dict[str, Callable[[Path], Subject]] = {
        "plain": plain_subject,
        "sharded": sharded_subject,
    }
    for name, number in (QUICK_CORRUPT if quick else CORRUPT).items():
        if keys := _missing(store, f"corrupt/{name}", number):
            subject = makers[name](place.path / name)
            yield Todo(
                f"damage {name}", {key: partial(corrupt_trial, key, subject) for key in keys}
            )


def full_trials(place: Place, store: Results, *, quick: bool) -> Iterable[Todo]:
    """Full disks."""
    if keys := _missing(store, "disk_full", QUICK_FULL if quick else FULL):
        text = place.text.read_bytes()
        reference = undisturbed_on_simulated(text)
        yield Todo("full disks", {key: partial(full_trial, key, reference, text) for key in keys})


def run_trials(todo: Todo, store: Results, progress: Progress, *, jobs: int) -> None:
    """Run trials and keep what came of each; one that fails by itself is kept as a failure."""
    task = progress.add_task(todo.name, total=len(todo.trials))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_quiet) as pool:
        running = {pool.submit(_guarded, trial): key for key, trial in todo.trials.items()}
        for done in as_completed(running):
            store.add(running[done], done.result())
            progress.advance(task)


def _missing(store: Results, prefix: str, number: int) -> list[str]:
    keys = [f"{prefix}/{at:04d}" for at in range(number)]
    return [key for key in keys if not store.done(key)]


def _guarded(trial: Trial) -> dict[str, Any]:
    try:
        return trial()
    except Exception as error:
        said = f"the trial itself failed: {type(error).__name__}: {error}"
        trace = traceback.format_exc()[-2000:]
        return {"lost": [said], "bitexact": False, "outcome": "crashed", "trace": trace}


def _quiet() -> None:
    """A worker: one thread, and no word of what the runs it breaks say about it."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if not os.environ.get("FORESHOCK_SHOW_TRIALS"):
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
