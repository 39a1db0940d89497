"""The demo over many fault seeds, and as many healthy runs: the proof that issue one asks for.

    python -m benchmarks.demo_seeds --seeds 10 --json docs/measurements/demo-seeds.json

Resumable: seeds that are in the file already are not run again.
"""

import argparse
import json
import platform
import tempfile
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
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    kept: dict[str, Any] = {}
    if options.json is not None and options.json.exists():
        kept = json.loads(options.json.read_text())["runs"]
    jobs = [(f"{kind}-{seed}", kind, seed) for seed in range(options.seeds) for kind in KINDS]
    with Progress() as bar:
        task = bar.add_task("demo", total=len(jobs))
        for name, kind, seed in jobs:
            if name not in kept:
                kept[name] = run(kind, seed)
                if options.json is not None:
                    options.json.parent.mkdir(parents=True, exist_ok=True)
                    options.json.write_text(json.dumps(summary(kept), indent=1) + "\n")
            bar.advance(task)
    print(json.dumps({key: value for key, value in summary(kept).items() if key != "runs"}))


KINDS = ("faults", "healthy")


def run(kind: str, seed: int) -> dict[str, Any]:
    """One demo, without its curves."""
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
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        "faulty_runs": len(faulty),
        "faulty_runs_passed": sum(run["passed"] for run in faulty),
        "healthy_runs": len(healthy),
        "healthy_runs_without_incident": sum(run["passed"] for run in healthy),
        "excess_loss_ratio_unguarded_to_guarded": round(unguarded / guarded, 2)
        if guarded
        else None,
        "runs": runs,
    }


if __name__ == "__main__":
    main()
