"""What one integration can do, in a process of its own: `python -m … measure NAME`, as JSON."""

import argparse
import itertools
import json
import multiprocessing
import signal
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.integrations.loops import Loop, loop_of
from foreshock.durable import RealDisk
from foreshock.recipes import standard
from foreshock.run_view import view_run
from tests.integrations import scenario

KILL_AT = 75
WIDE = 1024
SKIPPED_STEPS = 30
_WARM_STEPS = 8


def measure(name: str, *, steps: int, rounds: int) -> dict[str, Any]:
    """The figures of an integration.

    Args:
        name: of the loop.
        steps: of each timed run.
        rounds: timed runs of either kind, taking turns.
    """
    loop = loop_of(name)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        return {
            "skip_exact": _skips(loop, here / "skip"),
            "rollback_exact": _rolls_back(loop, here / "back"),
            "resume_exact": _resumes(name, loop, here / "killed"),
            **_overhead(loop, here / "timed", steps=steps, rounds=rounds),
        }


def _skips(loop: Loop, folder: Path) -> bool:
    """A row whose gradient is NaN is met early; its step is skipped, and all others are made."""
    places, bad = scenario.NAN_AT, (scenario.BAD_FROM, scenario.BAD_TO)
    scenario.NAN_AT, (scenario.BAD_FROM, scenario.BAD_TO) = scenario.BATCH * 12 + 3, (0, 0)
    try:
        trained = loop.guarded(_made(folder), SKIPPED_STEPS)
        batches = loop.survivors(folder / "run")
        kinds = [one["kind"] for one in view_run(RealDisk(), folder / "run").records]
        once = kinds.count("skip") == 1 and len(batches) == SKIPPED_STEPS - 1
        return once and _equal(trained, loop.untouched(folder)(batches))
    finally:
        scenario.NAN_AT, (scenario.BAD_FROM, scenario.BAD_TO) = places, bad


def _rolls_back(loop: Loop, folder: Path) -> bool:
    """The whole scenario: a bad region undone and set aside, and a step skipped after that."""
    trained = loop.guarded(_made(folder), loop.steps)
    try:
        scenario.check(
            folder / "run",
            trained,
            loop.untouched(folder),
            survivors=loop.survivors,
            num_updates=loop.num_updates,
        )
    except AssertionError:
        return False
    return True


def _resumes(name: str, loop: Loop, folder: Path) -> bool:
    """Killed at random, and taken up again, the whole state is that of a run that was not."""
    whole = loop.interrupted(_made(folder / "whole"), None)
    run_dir = _made(folder / "again")
    process = multiprocessing.get_context("spawn").Process(
        target=_interrupted, args=(name, run_dir, KILL_AT)
    )
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL and loop.interrupted(run_dir, None) == whole


def _interrupted(name: str, run_dir: Path, kill_at: int) -> None:
    loop_of(name).interrupted(run_dir, kill_at)


def _overhead(loop: Loop, folder: Path, *, steps: int, rounds: int) -> dict[str, Any]:
    """What the Guard adds to the framework's own median step, in pairs of runs.

    Which of a pair comes first takes turns, so that a machine that grows slower is in both.
    """
    width, scenario.WIDTH = scenario.WIDTH, WIDE
    recipe, scenario.recipe = scenario.recipe, lambda: standard({"rules": False})
    scenario.NAN_AT, scenario.BAD_TO = 0, scenario.BAD_FROM  # a healthy run
    placed = scenario.order()
    starts = range(scenario.BATCH, scenario.BATCH * (steps + 1), scenario.BATCH)
    batches = [placed[start : start + scenario.BATCH] for start in starts]
    pairs: list[dict[str, _Secs]] = []
    try:
        for number in range(rounds):
            here = _made(folder / str(number))
            runs: dict[str, Callable[[], Any]] = {
                "guarded": partial(loop.guarded, here, steps),
                "plain": partial(loop.untouched(here.parent), batches),
            }
            order = list(runs) if number % 2 else list(reversed(runs))
            pairs.append({name: _median_step(runs[name]) for name in order})
    finally:
        scenario.WIDTH, scenario.recipe = width, recipe
    told: dict[str, Any] = {}
    for clock, name in (("cpu", "overhead_pct"), ("wall", "overhead_wall_pct")):
        ratios = [getattr(pair["guarded"], clock) / getattr(pair["plain"], clock) for pair in pairs]
        percents = sorted(round(100 * (ratio - 1), 1) for ratio in ratios)
        told |= {name: statistics.median(percents), f"{name}_range": [percents[0], percents[-1]]}
    steps_ms = [1000 * pair["plain"].cpu for pair in pairs]
    return {**told, "plain_step_ms": round(statistics.median(steps_ms), 2)}


class _Secs(NamedTuple):
    """Of one step: the training's thread, and the clock on the wall."""

    cpu: float
    wall: float


def _median_step(run: Callable[[], Any]) -> _Secs:
    """The median over a run's steps, which begin where the scenario's model is called."""
    marks: list[_Secs] = []

    def mark(module: nn.Module, _: Any) -> None:
        if isinstance(module, scenario.Model) and module.training:
            marks.append(_Secs(time.thread_time(), time.perf_counter()))

    hook = nn.modules.module.register_module_forward_pre_hook(mark)
    try:
        run()
    finally:
        hook.remove()
    steps = list(itertools.pairwise(marks[_WARM_STEPS:]))
    return _Secs(
        statistics.median(b.cpu - a.cpu for a, b in steps),
        statistics.median(b.wall - a.wall for a, b in steps),
    )


def _made(folder: Path) -> Path:
    """A run directory to be, in a folder that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "run"


def _equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(mine, its) for mine, its in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(json.dumps(measure(given.name, steps=given.steps, rounds=given.rounds)))


if __name__ == "__main__":
    main()
