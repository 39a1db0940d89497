"""The fault matrix: six kinds of failure in runs forked from healthy anchors, and healthy runs.

Each trial takes up a copy of a cached anchor, so that thresholds, trends and snapshots are those
of a run that has gone on for a while; a fault strikes it once; the Guard is left alone with it.

`recovered`: the run came to its end by itself, with every incident closed, every weight and moment
finite and no weight far out of what healthy ends have, and with a held-out loss within three
standard deviations of what healthy twins from the same anchor reach in as many surviving steps.
The twins differ only in the data that they saw. Both end at the same step number, so the number of
surviving steps is the same; a recovered run has executed more.

`tokens_lost_median`: by recovered trial in which anything was done: steps that were undone or
skipped, and samples that stay in quarantine before and after `foreshock minimize`, against going
back 100 steps and skipping 200 batches.

`healthy`: rollbacks in runs with which nothing is wrong, on heavy-tailed data.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from rich.progress import Progress, TaskID

from benchmarks.recovery.anchors import ANCHOR_STEP, anchor, end_of
from benchmarks.recovery.matrix_faults import FAULTS, draw
from benchmarks.recovery.matrix_figures import PREFIX, figures
from benchmarks.recovery.matrix_healthy import OUTLIER_STEPS, STEPS, run_healthy
from benchmarks.recovery.matrix_trial import run_trial
from benchmarks.recovery.results import Results

SEEDS: Final = 20
ANCHORS: Final = 4
TWINS: Final = 5  # of an anchor: one on the data of its trials, the others on data of their own
UNGUARDED: Final = 4
HEALTHY_RUNS: Final = 20
BUDGET: Final = 32
"""Replays an incident. Fewer than `minimize` allows by itself: its result is then a bound."""

_QUICK: Final = {"seeds": 1, "anchors": 1, "twins": 4, "unguarded": 0, "healthy": 5, "budget": 4}
_FULL: Final = {
    "seeds": SEEDS,
    "anchors": ANCHORS,
    "twins": TWINS,
    "unguarded": UNGUARDED,
    "healthy": HEALTHY_RUNS,
    "budget": BUDGET,
}
_QUICK_STEPS, _QUICK_OUTLIER_STEPS = 120, 240

Jobs = dict[str, Callable[[], Any]]


def matrix(quick: bool, results: Results, progress: Progress) -> dict[str, Any]:
    """Run what is missing, and return the figures of all there is.

    Args:
        quick: one seed of each fault on one anchor, five short healthy runs.
        results: where trials are kept; anchors lie in a folder beside its file.
        progress: is shown a bar.
    """
    jobs = _jobs(quick, results)
    task = progress.add_task("fault matrix", total=len(jobs))
    for key, job in jobs.items():
        _run(key, job, results, progress, task)
    return figures(results.values(f"{PREFIX}/"))


def _run(
    key: str, job: Callable[[], Any], results: Results, progress: Progress, task: TaskID
) -> None:
    progress.update(task, description=key)
    if not results.done(key):
        results.add(key, job())
    progress.advance(task)


def _jobs(quick: bool, results: Results) -> Jobs:
    """Everything there is to do, by key: all faults of a seed before the next seed."""
    sizes = _QUICK if quick else _FULL
    folder = results.path.parent / "anchors"
    folder.mkdir(parents=True, exist_ok=True)
    jobs: Jobs = {}
    for seed in range(sizes["anchors"]):
        for fork in range(sizes["twins"]):
            key = f"{PREFIX}/twin/{seed}/{fork}"
            jobs[key] = lambda seed=seed, fork=fork: end_of(anchor(seed, folder), fork=fork)
    for seed in range(sizes["seeds"]):
        for kind in FAULTS:
            jobs[f"{PREFIX}/trial/{kind}/{seed:02d}"] = lambda kind=kind, seed=seed: run_trial(
                anchor(seed % sizes["anchors"], folder),
                draw(kind, seed, ANCHOR_STEP),
                budget=sizes["budget"],
            )
            if seed < sizes["unguarded"]:
                jobs[f"{PREFIX}/unguarded/{kind}/{seed:02d}"] = lambda kind=kind, seed=seed: (
                    _unguarded(kind, seed, sizes, results)
                )
    for seed in range(sizes["healthy"]):
        long = seed == 0
        steps = (_QUICK_OUTLIER_STEPS if long else _QUICK_STEPS) if quick else 0
        steps = steps or (OUTLIER_STEPS if long else STEPS)
        jobs[f"{PREFIX}/healthy/{seed:02d}"] = lambda seed=seed, steps=steps, long=long: (
            run_healthy(seed, steps=steps, outliers=long)
        )
    return jobs


def _unguarded(kind: str, seed: int, sizes: Mapping[str, int], results: Results) -> dict[str, Any]:
    one = anchor(seed % sizes["anchors"], results.path.parent / "anchors")
    end = end_of(one, drawn=draw(kind, seed, ANCHOR_STEP))
    return {"anchor": one.seed, "held_out": end if end - end == 0 else None}
