"""Healthy runs on heavy-tailed data: nothing is wrong with them, and nothing may be undone."""

import base64
import math
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.recovery.matrix_account import cost_of
from benchmarks.recovery.matrix_program import (
    BATCH_SIZE,
    NAME,
    Replaced,
    Windows,
    held_out_loss,
    is_finite,
    matrix_program,
    recipe,
    replace_steps,
)
from foreshock.core.errors import Halted
from foreshock.core.names import GRAD_NORM, LOSS, series_name
from foreshock.core.program import Settings
from foreshock.driver import build, guard_for
from foreshock.guard import Guard

STEPS: Final = 300
OUTLIER_STEPS: Final = 2400
_FIRST_STEP = 20
_EVERY_STEPS = 12.0  # mean distance of outliers; never two in a row
_TAIL_INDEX = 1.5  # of the number of hard samples a step: mean and variance are those of its cut
_USUAL_SAMPLES = 0.5
_FAR_Z = 6.0


def run_healthy(seed: int, *, steps: int, outliers: bool) -> dict[str, Any]:
    """Train from the start under the Guard, and say what it did; strict JSON.

    Hard samples are clean: Base64 and Ascii85, as code, mails and documents hold them. They
    cannot be predicted, so that a step of them stays an outlier however long the model trains.
    Heavy-tailed: how many a step holds follows a Pareto law, cut at the batch.
    Outliers: one step in twelve, at random but never two in a row, is half hard samples, which
    lifts its loss by some ten standard deviations; all others are plain. More of them in a
    step does harm that a probe finds.

    Args:
        seed: of model, data, and what is hard.
        steps: of the run.
        outliers: single steps; else heavy-tailed numbers of samples in any.
    """
    rng = np.random.default_rng([seed, int(outliers)])
    plan = _outliers(rng, steps) if outliers else _heavy_tail(rng, steps)
    settings = Settings(seed=1000 + seed, max_steps=steps)
    clean = build(matrix_program, settings)
    replaced: Replaced = replace_steps(clean, plan, lambda windows: hard_samples(windows, rng))
    program = build(
        matrix_program,
        Settings(seed=settings.seed, max_steps=steps, overrides={"replaced": replaced}),
    )
    executed: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        guard = guard_for(
            program, name=NAME, run_dir=Path(folder) / "run", recipe=recipe(), max_steps=steps
        )
        with guard, suppress(Halted):
            program.model.train()
            for batch in guard:
                guard.step(program.loss(program.model, batch))
                executed.append((guard.attempt, guard.step_number))
        shown = {name: _shown(guard, name) for name in (LOSS.name, GRAD_NORM.name)}
    end = held_out_loss(program.model)
    cost = cost_of(guard.records, executed)
    plans = [one for incident in guard.book.incidents for one in incident.plans]
    return {
        "steps": steps,
        "outlier_steps": len(plan) if outliers else 0,
        "hard_samples": sum(plan.values()),
        "one_step_outliers": shown,
        "ended": guard.halted is None and guard.step_number == steps,
        "halted": guard.halted,
        "finite": is_finite(program),
        "held_out": end if math.isfinite(end) else None,
        "rollbacks": guard.book.num_rollbacks,
        "incidents": len(guard.book.incidents),
        "plans": [[one.step, one.plan.rung, one.plan.target_step] for one in plans],
        "skipped_steps": cost.skipped,
        "undone_steps": cost.recomputed,
        "held": guard.num_quarantined,
        "alarmed_steps": len(_alarmed(guard)),
        "probed_episodes": sum(one["kind"] == "episode_probed" for one in guard.records),
    }


def _outliers(rng: np.random.Generator, steps: int) -> dict[int, int]:
    gaps = 1 + rng.geometric(1 / (_EVERY_STEPS - 1), size=steps)  # 2 at least
    struck = _FIRST_STEP + np.cumsum(gaps)
    return {int(step): BATCH_SIZE // 2 for step in struck if step <= steps}


def _heavy_tail(rng: np.random.Generator, steps: int) -> dict[int, int]:
    numbers = np.floor(_USUAL_SAMPLES * (1 + rng.pareto(_TAIL_INDEX, size=steps)))
    return {step: int(min(number, BATCH_SIZE)) for step, number in enumerate(numbers, 1) if number}


def hard_samples(clean: Windows, rng: np.random.Generator) -> Windows:
    """Base64 and Ascii85 of random bytes in the place of clean windows `[N, T + 1]`."""
    hard = np.empty_like(clean)
    for row in range(len(clean)):
        encode = (base64.b64encode, base64.a85encode)[rng.integers(2)]
        text = encode(rng.bytes(clean.shape[1]))[: clean.shape[1]]
        hard[row] = np.frombuffer(text, dtype=np.uint8)
    return hard


def _shown(guard: Guard, signal: str) -> int:
    """Steps at which a signal stood out and at whose neighbours it did not.

    Six robust sigma above the median of the hundred steps around it; of the last 2,048 steps.
    """
    values = guard.monitor.timeline.values(series_name(signal)).astype(np.float64)
    far = np.zeros(len(values), dtype=bool)
    for at in range(len(values)):
        near = values[max(0, at - 50) : at + 51]
        middle = np.median(near)
        spread = 1.4826 * np.median(np.abs(near - middle))
        far[at] = values[at] > middle + _FAR_Z * spread
    return int((far & ~np.roll(far, 1) & ~np.roll(far, -1)).sum())


def _alarmed(guard: Guard) -> set[tuple[int, int]]:
    """Steps with an alarm that counts."""
    advisory = {one.name for one in recipe().detectors if one.advisory}
    return {
        (one["attempt"], one["step"])
        for one in guard.records
        if one["kind"] == "alarm" and one["alarm"]["detector"] not in advisory
    }
