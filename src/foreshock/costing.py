"""What each signal costs on a user's own model: measured, not promised."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from foreshock.core.meter import Meter
from foreshock.core.program import Program, as_loss
from foreshock.core.signal import Exactness
from foreshock.fused.passes import status
from foreshock.recipes import Recipe
from foreshock.watching import DETECTORS, NORMS, PACKING, Watch

WARM_UP_STEPS = 3
OTHERS = {
    NORMS: "gradient norms (the pass that clipping takes anyway)",
    PACKING: "one buffer, one copy",
    DETECTORS: "detectors",
}
"""What is not done by a signal, in words."""


@dataclass(frozen=True, kw_only=True)
class SignalCost:
    """One signal as it stands on one model.

    Attributes:
        name: of the signal.
        num_series: series that it gives.
        exactness: exact, bound or sampled; None for what is no signal.
        level: the lowest level that records it.
        interval_steps: steps between measurements.
        passes: over memory, in words.
        cost_pct: seconds spent on it, in percent of the plain step's.
        notes: what is not observed, or falls back, and why.
    """

    name: str
    num_series: int
    exactness: Exactness | None
    level: str
    interval_steps: int
    passes: str
    cost_pct: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What watching a program costs.

    Attributes:
        step_secs: median time of a plain step, without what is counted here.
        signals: each signal that found something to measure.
        others: what is not done by a signal: norms, packing, detectors.
        bytes_per_step: of the one copy to the host, at most.
        fused: how the fused passes were made, or why there are none.
    """

    step_secs: float
    signals: tuple[SignalCost, ...]
    others: tuple[SignalCost, ...]
    bytes_per_step: int
    fused: str

    @property
    def total_pct(self) -> float:
        """All of it in percent of a step, but for the pass that clipping takes anyway."""
        rows = [*self.signals, *(one for one in self.others if one.name != NORMS)]
        return sum(one.cost_pct for one in rows)


def measure_costs(
    program: Program,
    recipe: Recipe,
    steps: int,
    *,
    progress: Callable[[int], None] = lambda _step: None,
) -> Costs:
    """Train a program for a few steps under `watch`, and time every part of it.

    The time is that spent in Foreshock's own code, over that of the rest of the step. On an
    accelerator each part waits for the device, which shows its whole cost; in a run nothing
    waits.
    """
    device = next(program.model.parameters()).device

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    meter = Meter(clock)
    program.model.train()
    watched = Watch(
        program.model,
        program.optimizer,
        recipe=recipe,
        terms=program.terms,
        per_sample=program.per_sample,
        scaler=program.scaler,
        meter=meter,
    )
    plain: list[float] = []
    with watched:
        for number in range(WARM_UP_STEPS + steps):
            if number == WARM_UP_STEPS:
                meter.clear()
            before = sum(meter.seconds.values())
            begin = clock()
            _step(program, watched)
            took = clock() - begin
            if number >= WARM_UP_STEPS:
                plain.append(took - (sum(meter.seconds.values()) - before))
            progress(number + 1)
        notes = watched.notes
        attached = watched.attached
        num_partials = watched.num_partials
    step_secs = sorted(plain)[len(plain) // 2]

    def percent(name: str) -> float:
        return 100 * meter.seconds[name] / steps / step_secs

    signals = tuple(
        SignalCost(
            name=signal.name,
            num_series=len(one.series),
            exactness=signal.exactness,
            level=signal.level,
            interval_steps=signal.interval_steps,
            passes=signal.passes,
            cost_pct=percent(signal.name),
            notes=tuple(
                f"{key.partition('/')[2]}: {note}"
                for key, note in notes.items()
                if key.startswith(f"{signal.name}/")
            ),
        )
        for signal, one in attached
    )
    others = tuple(
        SignalCost(
            name=name,
            num_series=0,
            exactness=None,
            level="",
            interval_steps=1,
            passes=words,
            cost_pct=percent(name),
        )
        for name, words in OTHERS.items()
    )
    return Costs(
        step_secs=step_secs,
        signals=signals,
        others=others,
        bytes_per_step=4 * num_partials,
        fused=status() if device.type == "cpu" else "none, on an accelerator",
    )


def _step(program: Program, watched: Watch) -> None:
    scaler: Any = program.scaler
    for _ in range(program.accumulate):
        found = program.loss(program.model, program.stream.next_batch().data)
        told = as_loss(found)
        loss = told.total / program.accumulate
        (loss if scaler is None else scaler.scale(loss)).backward()
        watched.loss(told.total, samples=told.per_sample, **told.terms)
    if program.clip is not None:
        if scaler is not None:
            scaler.unscale_(program.optimizer)
        watched.clip_(program.clip)
    if scaler is None:
        program.optimizer.step()
    else:
        scaler.step(program.optimizer)
        scaler.update()
    program.optimizer.zero_grad(set_to_none=True)
    if program.scheduler is not None:
        program.scheduler.step()
