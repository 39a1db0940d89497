"""PaLM: batches that do harm to one state and none to an older one, and the control for it."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from benchmarks.case_studies.running import (
    STRIKE_STEP,
    Ran,
    recipe,
    run,
    settings,
    told,
    top_three,
)
from benchmarks.diagnosis.runs import diagnosed_program
from benchmarks.recovery.matrix_program import BATCH_SIZE, CONTEXT, Windows, replace_steps
from foreshock.core.program import Loss, Program, Settings
from foreshock.driver import build
from foreshock.minimal import minimize
from foreshock.scene_of_run import scene_of
from foreshock.settling import by_case, experiments_named, settle

MARK: Final = 7
"""A byte that no text has; what begins with three of them is the window's."""
_LATE: Final = STRIKE_STEP - 15
"""Training passes from which on a state is one that the marked samples do harm to."""
_STEPS, _SAMPLES, _WEIGHT = 5, BATCH_SIZE // 2, 30.0
_LAST, _SEED, _REPLAYS = 320, 2, 60
_BACK: Final = 100
_SKIPPED: Final = {"least": 200, "most": 500}
_TOKENS_A_BATCH: Final = 2048 * 2048  # PaLM's largest batch, sequences times length
RECOVERY: Final = Path(__file__).parents[2] / "docs/measurements/recovery.json"
_EDGES: Final = (0.05, 0.1)  # rates, of 6e-3
_EXPERIMENTS: Final = ("earlier_state", "clean_control", "replay", "other_batch", "left_out")


def palm_program(of: Settings) -> Program:
    """The small GPT, with marked samples in five steps and a loss that weighs them when late."""
    clean = diagnosed_program(of)
    steps = dict.fromkeys(range(STRIKE_STEP, STRIKE_STEP + _STEPS), _SAMPLES)
    replaced = replace_steps(clean, steps, _marked)
    program = diagnosed_program(
        dataclasses.replace(of, overrides={**of.overrides, "replaced": replaced})
    )
    model = program.model
    model.register_buffer("passes", torch.zeros(()))
    model.register_forward_pre_hook(_count)
    inner = program.loss

    def loss(model: nn.Module, batch: torch.Tensor) -> Loss:
        found = inner(model, batch)
        marked = (batch[:, :3] == MARK).all(dim=1)
        if float(model.passes) <= _LATE or not bool(marked.any()):  # type: ignore[arg-type]
            return found
        weighed = torch.where(marked, _WEIGHT * found.per_sample, found.per_sample)
        return Loss(total=weighed.mean(), per_sample=weighed)

    return dataclasses.replace(program, loss=loss)


def _marked(windows: Windows) -> Windows:
    assert windows.shape[1] == CONTEXT + 1
    found = windows.copy()
    found[:, :3] = MARK
    return found


def _count(model: nn.Module, inputs: Any) -> None:
    if model.training:
        model.passes.add_(1)  # type: ignore[operator, union-attr]


def study(folder: Path) -> dict[str, Any]:
    """The run, PaLM's control on its incident, and runs at rates near the edge without a fault."""
    ran = run(folder / "run", settings(_SEED), _LAST, made=palm_program)
    return {
        **told(ran),
        "settled": _settled(ran),
        "harmful_samples": _STEPS * _SAMPLES,
        "minimal": _minimal(ran),
        "their_cost": {
            "steps_back": _BACK,
            "batches_skipped": _SKIPPED,
            "tokens": {name: their_cost(skipped) for name, skipped in _SKIPPED.items()},
        },
        "our_cost": our_cost(json.loads(RECOVERY.read_text(encoding="utf-8"))),
        "near_the_edge": [_edge(folder, rate) for rate in _EDGES],
    }


def _settled(ran: Ran) -> dict[str, Any]:
    program = build(palm_program, settings(_SEED))
    with scene_of(ran.run_dir, program, recipe(), incident=1) as scene:
        found = settle(
            scene,
            by_case(scene, recipe()),
            recipe().causes,
            experiments=experiments_named(_EXPERIMENTS),
            in_order=True,
        )
    return {
        "before": top_three(found.before.to_json()["candidates"]),
        "after": top_three(found.after.to_json()["candidates"]),
        "outcomes": [
            [one.experiment, one.result.outcome, one.result.statement]
            if one.result is not None
            else [one.experiment, "no result", one.reason]
            for one in found.told
        ],
        "is_settled": found.is_settled,
        "exact": found.exact,
        "num_steps": found.num_steps,
        "window_steps": found.window_steps,
    }


def _minimal(ran: Ran) -> dict[str, Any]:
    """What bisection leaves in quarantine of what the Guard set aside."""
    program = build(palm_program, settings(_SEED))
    found = minimize(ran.run_dir, program, recipe(), incident=1, budget=_REPLAYS)
    return {
        "verdict": found.verdict,
        "needed": len(found.needed),
        "undecided": len(found.undecided),
        "given_back": found.num_given_back,
        "replays": found.num_replays,
        "steps_replayed": found.steps_replayed,
    }


def their_cost(skipped: int) -> int:
    """Tokens of one spike: steps trained again, and batches never trained.

    >>> their_cost(200)
    1258291200
    """
    return (_BACK + skipped) * _TOKENS_A_BATCH


def our_cost(recovery: dict[str, Any]) -> dict[str, Any]:
    """Tokens lost to a bad region in the fault matrix: the fixed practice, and by bisection."""
    lost = recovery["tokens_lost_median"]["bad_region"]
    return {
        "fixed_practice": lost["fixed_practice"],
        "all_set_aside": lost["before_release"]["median"],
        "minimal": lost["after_release"]["median"],
        "times_fewer": round(lost["fixed_practice"] / lost["after_release"]["median"], 2),
    }


def _edge(folder: Path, rate: float) -> dict[str, Any]:
    """A rate many times the usual one, and nothing else: whether it spikes by itself."""
    ran = run(folder / f"edge-{rate}", settings(_SEED, lr=rate), 300)
    return {"lr": rate, "incidents": len(ran.guard.book.incidents), "last_step": 300}
