"""Plays the whole demo: guarded, unguarded, untouched; figures, curves and a report."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from foreshock.durable import RealDisk, write_file
from foreshock.lab.demo import Progress, demo_settings, run_forks, run_guarded, run_plain
from foreshock.lab.demo_faults import STEPS, DemoFaults
from foreshock.lab.demo_result import DemoResult, incidents_of

TWIN = "untouched twin"
_FORK_STEPS_SETTLED = 15

Listener = Callable[[str, Mapping[str, Any]], None]


def runs_of(*, faults: DemoFaults | None, guard: bool) -> list[tuple[str, int]]:
    """The runs of a demo, in order, with their steps."""
    runs = [(TWIN, STEPS)]
    if faults is not None:
        runs.append(("unguarded", STEPS))
    if guard:
        runs.append(("guarded", STEPS))
    return runs


def play(
    run_dir: Path,
    *,
    seed: int,
    faults: DemoFaults | None,
    guard: bool = True,
    rules: bool = False,
    progress: Progress,
    listener: Listener | None = None,
) -> DemoResult:
    """Run the demo and return its figures; `run_dir/demo.json` keeps them.

    Args:
        run_dir: of the guarded run; must be new or empty.
        seed: of the model and the data.
        faults: what strikes, or None for a healthy run.
        guard: whether there is a guarded run at all.
        rules: whether the online data rules are on.
        progress: called every step of every run.
        listener: hears of the Guard's work.
    """
    settings = demo_settings(faults, seed)
    result = DemoResult(faults=faults, traces={}, rules=rules)
    keep_at = faults.poison_step if faults is not None and guard else None
    twin, kept = run_plain(TWIN, settings, faults, struck=False, progress=progress, keep_at=keep_at)
    result.traces[TWIN] = twin
    if faults is not None:
        unguarded, _ = run_plain("unguarded", settings, faults, struck=True, progress=progress)
        result.traces["unguarded"] = unguarded
    if not guard:
        return result
    if faults is not None:
        spread = run_forks(settings, faults, kept, twin, progress)
        result.noise = math.sqrt(float(np.mean(np.square(spread))))
    engine, trace = run_guarded(
        settings, faults, run_dir, rules=rules, progress=progress, listener=listener
    )
    result.traces["guarded"] = trace
    result.finished = engine.halted is None
    result.num_refused = sum(record["kind"] == "rejected" for record in engine.records)
    result.incidents = incidents_of(engine, trace, twin, result.noise)
    content = json.dumps(result.to_json(), indent=1, allow_nan=False)
    write_file(RealDisk(), run_dir / "demo.json", [content.encode()])
    return result
