"""The demo over many fault seeds, and as many healthy runs: the proof that issue one asks for.

    python -m benchmarks.demo_seeds --seeds 10 --json docs/measurements/demo-seeds.json

Resumable: seeds that are in the file already are not run again.
"""

import argparse
import json
import multiprocessing
import os
import platform
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

import foreshock
from foreshock.lab.demo_faults import DemoFaults
from foreshock.lab.demo_run import play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path, default=None, help="where results are kept")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, a thread each")
    options = parser.parse_args()
    kept: dict[str, Any] = {}
    if options.json is not None and options.json.exists():
        kept = json.loads(options.json.read_text())["runs"]
    jobs = [(f"{kind}-{seed}", kind, seed) for seed in range(options.seeds) for kind in KINDS]
    waiting = [job for job in jobs if job[0] not in kept]
    spawn = multiprocessing.get_context("spawn")
    with Progress() as bar, ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool:
        task = bar.add_task("demo", total=len(jobs), completed=len(jobs) - len(waiting))
        running = {pool.submit(run, kind, seed): name for name, kind, seed in waiting}
        for done in as_completed(running):
            kept[running[done]] = done.result()
            if options.json is not None:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(summary(kept), indent=1) + "\n")
            bar.advance(task)
    print(json.dumps({key: value for key, value in summary(kept).items() if key != "runs"}))


KINDS = ("faults", "healthy")


def run(kind: str, seed: int) -> dict[str, Any]:
    """One demo on one thread, without its curves."""
    torch.set_num_threads(1)
    faults = DemoFaults.draw(seed) if kind == "faults" else None
    with tempfile.TemporaryDirectory() as folder:
        result = play(
            Path(folder) / "run", seed=seed, faults=faults, progress=lambda *_: None
        ).to_json()
    del result["curves"]
    return result


def summary(runs: dict[str, Any]) -> dict[str, Any]:
    """The runs with their totals."""
    faulty = [run for name, run in runs.items() if name.startswith("faults")]
    healthy = [run for name, run in runs.items() if name.startswith("healthy")]
    guarded = sum(run["excess_loss_guarded"] for run in faulty)
    unguarded = sum(run["excess_loss_unguarded"] for run in faulty)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "foreshock": foreshock.__version__,
        "torch": torch.__version__,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "accelerator": None},
        "faulty_runs": len(faulty),
        "faulty_runs_passed": sum(run["passed"] for run in faulty),
        "healthy_runs": len(healthy),
        "healthy_runs_without_incident": sum(run["passed"] for run in healthy),
        "excess_loss_ratio_unguarded_to_guarded": round(unguarded / guarded, 2)
        if guarded
        else None,
        "runs": dict(sorted(runs.items())),
    }


if __name__ == "__main__":
    main()
