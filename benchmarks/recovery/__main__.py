"""Recovery: is anything lost, what does it cost, and what does it save.

    python -m benchmarks.recovery --quick
    python -m benchmarks.recovery --json docs/measurements/recovery.json
    python -m benchmarks.recovery --only kill,corrupt --results DIR --json

The full form takes hours and may be killed at any moment: started again with the same
`--results` it goes on behind the trials that are kept there. By default that is a folder beside
the file that `--json` names; without either nothing is kept.

`kill_trials`, `kill_lost`, `kill_bitexact`: runs of a small GPT on real text with a rollback and a
quarantine, killed one to three times in a row (`kill -9` of a rank, or of all; or a loss of power
on a simulated disk), started again, and compared with an undisturbed run: *lost* if it did not
come to its end, or an incident, a decision or a sample is another, missing, or twice; *bitexact*
if every rank's state has the same digest. `corrupt_trials`, `corrupt_accepted`: damaged snapshot
files; *accepted* if a restore says that it is done and the state is not what was captured.
`disk_full_trials`, `disk_full_failed`: disks full for a while. `rollback_s`: see `rollback`.
`snapshot_stall_pct_of_step`: see `stall`. The fault matrix: see `matrix`.
"""

import argparse
import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import foreshock
from benchmarks.recovery import rollback, stall
from benchmarks.recovery.figures import figures
from benchmarks.recovery.results import Results
from benchmarks.recovery.trials import (
    Place,
    corrupt_trials,
    full_trials,
    kill_trials,
    run_trials,
)
from benchmarks.telling import folder_for, tell

TRIALS = {"kill": kill_trials, "corrupt": corrupt_trials, "disk_full": full_trials}
PARTS = (*TRIALS, "rollback", "stall", "matrix")


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with folder_for(options.results, options.json) as folder:
        store = Results(folder / ("quick.jsonl" if options.quick else "full.jsonl"))
        with bar:
            found = measure(options, store, bar)
    tell({**about(options), **found}, options.json)


def measure(options: argparse.Namespace, store: Results, bar: Progress) -> dict[str, Any]:
    """Make what is missing of the parts that are asked for; the figures of all that is kept."""
    timed = [part for part in options.only if part in ("rollback", "stall")]
    with Place() as place:
        for part in options.only:
            for todo in TRIALS[part](place, store, quick=options.quick) if part in TRIALS else ():
                run_trials(todo, store, bar, jobs=options.jobs)
    for part in timed:  # alone: nothing else may use the machine meanwhile
        _time(part, store, bar, quick=options.quick)
    found = figures(store)
    if "matrix" in options.only:
        from benchmarks.recovery.matrix import matrix  # noqa: PLC0415 - it alone takes hours

        found |= matrix(options.quick, store, bar)
    return found


def _time(part: str, store: Results, bar: Progress, *, quick: bool) -> None:
    measured: dict[str, Callable[[], dict[str, Any]]] = {}
    if part == "rollback":
        for name in rollback.QUICK if quick else rollback.SHAPES:
            rounds = 5 if quick else 11
            measured[f"rollback_s/{name}"] = partial(rollback.rollback_secs, name, rounds=rounds)
    else:
        for name in stall.QUICK if quick else stall.SHAPES:
            steps = 60 if quick else 120
            measured[f"snapshot_stall_pct_of_step/{name}"] = partial(stall.stall, name, steps=steps)
    task = bar.add_task(part, total=len(measured))
    for key, run in measured.items():
        if not store.done(key):
            load = round(os.getloadavg()[0], 2)
            store.add(key, run() | {"load_average_before": load})
        bar.advance(task)


def about(options: argparse.Namespace) -> dict[str, Any]:
    """When and with what this was measured."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "foreshock": foreshock.__version__,
        "torch": torch.__version__,
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "accelerator": None,
            "threads": torch.get_num_threads(),
        },
        "quick": options.quick,
        "parts": list(options.only),
    }


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.recovery",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer trials: ten minutes, two cores")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--results", type=Path, help="folder in which trials are kept")
    parser.add_argument(
        "--json", nargs="?", const="-", help="where the figures are kept; printed anyway"
    )
    parser.add_argument("--jobs", type=int, default=2, help="trials side by side, a thread each")
    parser.add_argument("--threads", type=int, default=1, help="torch's, for what is timed")
    options = parser.parse_args(arguments)
    options.only = [part for part in options.only.split(",") if part]
    if unknown := sorted(set(options.only) - set(PARTS)):
        parser.error(f"--only: unknown {unknown}; known are {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    main()
