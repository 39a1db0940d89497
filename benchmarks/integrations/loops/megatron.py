"""Megatron-LM, by the stand-in of the tests: gone back by restarts, on one rank.

An iteration that is set aside counts as one, so a run makes fewer updates than it has iterations.
"""

import hashlib
import json
from pathlib import Path

from torch import nn

from benchmarks.integrations.loops import Loop, Untouched
from tests.integrations import scenario
from tests.integrations import test_megatron as tried
from tests.integrations.megatron_lm import Megatron

_KEPT = "kept.json"
_STEPS = tried.TRAIN_ITERS


def _folder(run_dir: Path) -> Path:
    """Where the run is recorded, beside the checkpoints."""
    return run_dir.parent / "megatron"


def _guarded(run_dir: Path, steps: int) -> nn.Module:
    megatron, _, _, kept = tried.run(_folder(run_dir), until=steps)
    run_dir.symlink_to(_folder(run_dir) / "runs/a", target_is_directory=True)
    (run_dir.parent / _KEPT).write_text(json.dumps(kept))
    return megatron.model


def _survivors(run_dir: Path) -> list[list[int]]:
    placed, size = scenario.order(), scenario.BATCH
    kept = json.loads((run_dir.parent / _KEPT).read_text())
    return [placed[size * (one - 1) : size * one] for one in kept]


def _untouched(folder: Path) -> Untouched:
    def train(batches: list[list[int]]) -> nn.Module:
        rows = [row for batch in batches for row in batch]
        megatron = Megatron(["--train-iters", str(len(batches))], rows)
        megatron.train()
        return megatron.model

    return train


def _interrupted(run_dir: Path, kill_at: int | None) -> str:
    megatron = tried.run(_folder(run_dir), until=_STEPS, kill_at=kill_at)[0]
    state = megatron.optimizer.optimizer.state_dict()["state"].values()
    held = [*megatron.model.parameters(), *(one for each in state for one in each.values())]
    digest = hashlib.blake2b(b"".join(one.detach().numpy().tobytes() for one in held))
    return digest.hexdigest()


LOOP = Loop(
    guarded=_guarded,
    untouched=_untouched,
    interrupted=_interrupted,
    survivors=_survivors,
    steps=_STEPS,
    num_updates=None,
)
