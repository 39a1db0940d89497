"""The demo: the same training guarded, unguarded and untouched, and what came of each."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foreshock import recipes
from foreshock.core.errors import Halted
from foreshock.core.program import Program, Settings
from foreshock.data.ledger import LedgerEntry
from foreshock.driver import build, guard_for
from foreshock.guard import Guard
from foreshock.lab.demo_faults import STEPS, DemoFaults
from foreshock.lab.programs import BATCH_SIZE, text_program
from foreshock.probes.held_out_loss import HeldOutLoss
from foreshock.snapshots.parts import Part, clone_tree, part_for
from foreshock.verification import measure

MEASURE_EVERY_STEPS = 5
_FORK_STEPS = 60
_FORK_GAP_BATCHES = (37, 101)
_CADENCE = recipes.Cadence(memory_steps=10, memory_keep=6, disk_steps=50, disk_keep=3)

Progress = Callable[[str, int, float], None]
"""Called with the run's name, the steps executed and the training loss."""


@dataclass(kw_only=True)
class Trace:
    """What one run did.

    Attributes:
        name: guarded, unguarded or untouched.
        held_out: (executed steps, step number, held-out loss): every few steps, and every
            step for a while after a fault, where a peak could hide between two measurements.
        loss: training loss of every executed step, those that were undone included.
        steps: the step number of each.
    """

    name: str
    held_out: list[tuple[int, int, float]] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    @property
    def executed(self) -> int:
        """Steps executed so far."""
        return len(self.steps)

    def by_step(self) -> dict[int, float]:
        """Held-out loss by step number; of a step trained twice, the later one."""
        return {step: value for _, step, value in self.held_out}


class _Run:
    """A program that is being trained, and its trace."""

    def __init__(
        self, name: str, program: Program, progress: Progress, faults: DemoFaults | None = None
    ) -> None:
        self.trace = Trace(name=name)
        self._faults = faults
        self.program = program
        self._probe = HeldOutLoss(batches=program.held_out, loss=program.loss)
        self._progress = progress

    def executed(self, step: int, loss: float) -> None:
        trace = self.trace
        trace.steps.append(step)
        trace.loss.append(loss)
        after_a_fault = self._faults is not None and self._faults.is_after_one(step)
        if step % MEASURE_EVERY_STEPS == 0 or after_a_fault:
            values = measure(self.program.model, [self._probe])[self._probe.name]
            trace.held_out.append((trace.executed, step, float(np.mean(values))))
        self._progress(trace.name, trace.executed, loss)


def demo_settings(faults: DemoFaults | None, seed: int, steps: int = STEPS) -> Settings:
    """The settings of a demo run; without faults the stream has no poisoned stage."""
    overrides = {"poison": faults.poison()} if faults is not None else {}
    return Settings(seed=seed, max_steps=steps, overrides=overrides)


def run_guarded(
    settings: Settings,
    faults: DemoFaults | None,
    run_dir: Path,
    *,
    rules: bool = False,
    progress: Progress,
    listener: Callable[[str, Mapping[str, Any]], None] | None = None,
) -> tuple[Guard, Trace]:
    """Train under the Guard; the faults happen once, whatever the Guard does about them."""
    program = build(text_program, settings)
    recipe = recipes.standard({"rules": rules, "cadence": vars(_CADENCE)})
    run = _Run("guarded", program, progress, faults)
    guard = guard_for(
        program,
        name="demo",
        run_dir=run_dir,
        recipe=recipe,
        max_steps=settings.max_steps,
        listener=listener,
    )
    struck = False
    with guard, suppress(Halted):
        for batch in guard:
            step = guard.step_number + 1
            if faults is not None and step == faults.moments_step and not struck:
                struck = True
                _strike(faults, program)
            loss = program.loss(program.model, batch)
            guard.step(loss)
            run.executed(step, float(loss.detach()))
    return guard, run.trace


def run_plain(
    name: str,
    settings: Settings,
    faults: DemoFaults | None,
    *,
    struck: bool,
    progress: Progress,
    keep_at: int | None = None,
) -> tuple[Trace, Any]:
    """Train without Foreshock: struck by the faults, or as if they had never been.

    Args:
        name: of the trace.
        settings: with the poisoned stage in the stream.
        faults: what strikes; None for none.
        struck: False skips the poisoned stage and leaves the optimizer alone.
        progress: called every step.
        keep_at: step whose state is returned for forks.
    """
    program = build(text_program, settings)
    if faults is not None and not struck:
        step_around(faults, program)
    run = _Run(name, program, progress, faults if struck else None)
    kept: Any = None
    for step in range(1, settings.max_steps + 1):
        if struck and faults is not None and step == faults.moments_step:
            _strike(faults, program)
        run.executed(step, _plain_step(program))
        if step == keep_at:
            kept = clone_tree({key: part.capture() for key, part in _parts(program).items()})
    return run.trace, kept


def run_forks(
    settings: Settings, faults: DemoFaults, kept: Any, twin: Trace, progress: Progress
) -> list[float]:
    """How far healthy runs differ that only saw other data: the noise to verify against.

    From the twin's state before the first fault, train on other batches of the same text,
    and compare the held-out loss with the twin's at the same number of updates.
    """
    differences: list[float] = []
    level = twin.by_step()
    for gap in _FORK_GAP_BATCHES:
        program = build(text_program, settings)
        step_around(faults, program)
        for key, part in _parts(program).items():
            part.restore(kept[key])
        past = (faults.poison_step + faults.poison_batches + gap) * BATCH_SIZE
        program.stream.load_state_dict({"position": past})
        run = _Run(f"fork {gap}", program, progress)
        for step in range(faults.poison_step + 1, faults.poison_step + _FORK_STEPS + 1):
            run.executed(step, _plain_step(program))
        differences += [
            value - level[step] for step, value in run.trace.by_step().items() if step in level
        ]
    return differences


def _strike(faults: DemoFaults, program: Program) -> None:
    rng = np.random.default_rng([faults.seed, 0x0B])
    faults.moments.inject(program.model, program.optimizer, rng)


def step_around(faults: DemoFaults, program: Program) -> None:
    """The stream as if the poisoned stage had never been: same order of everything else."""
    start = faults.poison_step * BATCH_SIZE
    stop = start + faults.poison_batches * BATCH_SIZE
    program.stream.ledger.add(
        LedgerEntry(entry_id="untouched", reason="never met", window=(start, stop))
    )


def _plain_step(program: Program) -> float:
    program.model.train()
    loss = program.loss(program.model, program.stream.next_batch().data)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(program.model.parameters(), program.clip or float("inf"))
    program.optimizer.step()
    program.optimizer.zero_grad(set_to_none=True)
    program.scheduler.step()
    return float(loss.detach())


def _parts(program: Program) -> dict[str, Part]:
    names = ("model", "optimizer", "scheduler", "stream")
    return {name: part_for(name, getattr(program, name)) for name in names}
