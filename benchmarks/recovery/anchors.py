"""Cached healthy runs that trials fork from, and how much healthy ends differ by themselves."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recovery.matrix_faults import Drawn
from benchmarks.recovery.matrix_program import (
    BATCH_SIZE,
    NAME,
    held_out_loss,
    matrix_program,
    recipe,
)
from foreshock.core.program import Program, Settings
from foreshock.driver import build, guard_for, train
from foreshock.durable import RealDisk
from foreshock.replaying import Replay

ANCHOR_STEP = 240
"""Steps of an anchor: thresholds are warm, the loss has left its steep part."""
END_STEP = 460
"""Where every trial and every twin ends."""
_FORK_STEPS = 250  # between the data of forks: none of it is met twice

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """A healthy run up to `ANCHOR_STEP`, as its run directory holds it.

    Attributes:
        seed: of model and data.
        run_dir: never written to again: a trial works on a copy.
        snapshot_id: its state at the end, with what watched it.
    """

    seed: int
    run_dir: Path
    snapshot_id: str

    @property
    def settings(self) -> Settings:
        """Those of the run."""
        return Settings(seed=self.seed, max_steps=END_STEP)

    def copy(self, folder: Path) -> Path:
        """A run directory of its own, which a trial may write to."""
        return Path(shutil.copytree(self.run_dir, folder / "run"))

    def program(self, drawn: Drawn | None = None) -> Program:
        """The program, built anew; with a fault's data, if it has any."""
        if drawn is None or not drawn.num_steps:
            return build(matrix_program, self.settings)
        replaced = drawn.replaced(build(matrix_program, self.settings))
        settings = Settings(seed=self.seed, max_steps=END_STEP, overrides={"replaced": replaced})
        return build(matrix_program, settings)


def anchor(seed: int, folder: Path) -> Anchor:
    """The anchor of a seed; trained if it is not there yet. Whole or not at all."""
    run_dir = folder / f"anchor-{seed}-{ANCHOR_STEP}-{END_STEP}"
    if not run_dir.exists():
        begun = folder / f"{run_dir.name}.begun"
        shutil.rmtree(begun, ignore_errors=True)
        program = build(matrix_program, Settings(seed=seed, max_steps=END_STEP))
        guard = guard_for(program, name=NAME, run_dir=begun, recipe=recipe(), max_steps=ANCHOR_STEP)
        with guard:
            train(program, guard)
        if guard.book.incidents:
            raise RuntimeError(f"the anchor of seed {seed} had an incident: {guard.book.incidents}")
        begun.rename(run_dir)
    return Anchor(seed=seed, run_dir=run_dir, snapshot_id=f"{ANCHOR_STEP:08d}-a00001")


def end_of(one: Anchor, *, fork: int = 0, drawn: Drawn | None = None) -> float:
    """Held-out loss at `END_STEP` of a run that nobody guards, from the anchor on.

    Args:
        one: where it begins.
        fork: 0 sees the data that a trial sees; each other number sees data of its own.
        drawn: a fault that strikes it, or None for a healthy twin.
    """
    program = one.program(drawn)
    replay = Replay(program, recipe(), one.run_dir, (), disk=RealDisk())
    try:
        replay.go_to(one.snapshot_id)
        if fork:
            past = replay.stream.position + fork * _FORK_STEPS * BATCH_SIZE
            replay.stream.load_state_dict({"position": past})
        while replay.step < END_STEP:
            if drawn is not None and replay.step + 1 == drawn.step:
                drawn.strike(program)
            batches = replay.draw()
            assert batches is not None, "the data ended before the run"
            replay.train(batches)
    finally:
        replay.close()
    return held_out_loss(program.model)
