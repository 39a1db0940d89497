"""What the Guard costs a step: its own loop against the same loop by hand, interleaved.

python -m benchmarks.step_cost [--json] [--steps 40] [--width 96]
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from foreshock import recipes
from foreshock.core.program import Program, Settings
from foreshock.driver import build, guard_for
from foreshock.lab.programs import text_program
from foreshock.watching import watch

_PAIR_STEPS = 5


def update(program: Program) -> None:
    """The end of a step, as people write it by hand."""
    torch.nn.utils.clip_grad_norm_(program.model.parameters(), program.clip or 1.0)
    program.optimizer.step()
    program.scheduler.step()
    program.optimizer.zero_grad(set_to_none=True)


def plain(program: Program) -> Callable[[], None]:
    """One step of the loop that people write by hand."""

    def step() -> None:
        loss = program.loss(program.model, program.stream.next_batch().data)
        loss.backward()
        update(program)

    return step


def watched(program: Program) -> Callable[[], None]:
    """The same, observed by `watch`."""
    observer = watch(program.model, program.optimizer)

    def step() -> None:
        loss = program.loss(program.model, program.stream.next_batch().data)
        loss.backward()
        observer.loss(loss)
        observer.before_clip()
        update(program)

    return step


def guarded(program: Program, run_dir: Path, *, rules: bool, snapshots: bool) -> Callable[[], None]:
    """The same under the Guard."""
    cadence = {"memory_steps": 10 if snapshots else 0, "disk_steps": 50 if snapshots else 10**9}
    recipe = recipes.standard({"rules": rules, "cadence": cadence})
    guard = guard_for(program, name="bench", run_dir=run_dir, recipe=recipe)

    def step() -> None:
        guard.step(program.loss(program.model, next(guard)))

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=40, help="steps of each variant")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--depth", type=int, default=3)
    options = parser.parse_args()

    settings = Settings(max_steps=1000, overrides={"width": options.width, "depth": options.depth})
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        variants = {
            "plain": plain(build(text_program, settings)),
            "watch": watched(build(text_program, settings)),
            "guard": guarded(
                build(text_program, settings), root / "a", rules=False, snapshots=False
            ),
            "guard+rules": guarded(
                build(text_program, settings), root / "b", rules=True, snapshots=False
            ),
            "guard+rules+snapshots": guarded(
                build(text_program, settings), root / "c", rules=True, snapshots=True
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        for step in variants.values():
            step()
        for _ in range(max(1, options.steps // _PAIR_STEPS)):
            for name, step in variants.items():
                start = time.perf_counter()
                for _ in range(_PAIR_STEPS):
                    step()
                seconds[name].append((time.perf_counter() - start) / _PAIR_STEPS)
    ratios = {
        name: round(
            statistics.median(a / b for a, b in zip(times, seconds["plain"], strict=True)), 4
        )
        for name, times in seconds.items()
    }
    result = {
        "model": {"width": options.width, "depth": options.depth},
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        "steps": options.steps,
        "ratio_to_plain": ratios,
    }
    if options.json:
        print(json.dumps(result))
    else:
        for name, ratio in ratios.items():
            print(f"{name:<24} {ratio:6.3f} times the plain loop")


if __name__ == "__main__":
    main()
