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
from pathlib import Path
from typing import Any

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
        batches = scenario.survivors(folder / "run")
        kinds = [one["kind"] for one in view_run(RealDisk(), folder / "run").records]
        once = kinds.count("skip") == 1 and len(batches) == SKIPPED_STEPS - 1
        return once and _equal(trained, loop.untouched(folder)(batches))
    finally:
        scenario.NAN_AT, (scenario.BAD_FROM, scenario.BAD_TO) = places, bad


def _rolls_back(loop: Loop, folder: Path) -> bool:
    """The whole scenario: a bad region undone and set aside, and a step skipped after that."""
    trained = loop.guarded(_made(folder), scenario.STEPS)
    try:
        scenario.check(folder / "run", trained, loop.untouched(folder))
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
    """The median step under the Guard over the framework's own, runs taking turns."""
    width, scenario.WIDTH = scenario.WIDTH, WIDE
    recipe, scenario.recipe = scenario.recipe, lambda: standard({"rules": False})
    scenario.NAN_AT, scenario.BAD_TO = 0, scenario.BAD_FROM  # a healthy run
    placed = scenario.order()
    starts = range(scenario.BATCH, scenario.BATCH * (steps + 1), scenario.BATCH)
    batches = [placed[start : start + scenario.BATCH] for start in starts]
    ratios: list[float] = []
    plain: list[float] = []
    try:
        for number in range(rounds):
            clock = _Clock()
            with clock:
                loop.guarded(_made(folder / str(number)), steps)
            guarded = clock.step_secs()
            with clock:
                loop.untouched(folder / str(number))(batches)
            plain.append(clock.step_secs())
            ratios.append(guarded / plain[-1])
    finally:
        scenario.WIDTH, scenario.recipe = width, recipe
    return {
        "overhead_pct": round(100 * (statistics.median(ratios) - 1), 1),
        "plain_step_ms": round(1000 * statistics.median(plain), 2),
    }


class _Clock:
    """Marks the time of each forward pass of the scenario's model."""

    def __enter__(self) -> None:
        self._marks: list[float] = []
        self._hook = nn.modules.module.register_module_forward_pre_hook(self._mark)

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def step_secs(self) -> float:
        marks = self._marks[_WARM_STEPS:]
        return statistics.median(b - a for a, b in itertools.pairwise(marks))

    def _mark(self, module: nn.Module, _: Any) -> None:
        if isinstance(module, scenario.Model) and module.training:
            self._marks.append(time.perf_counter())


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
