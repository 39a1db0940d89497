"""torchtitan's Trainer, by the stand-in of the tests, on one rank."""

import tempfile
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch import nn

from benchmarks.integrations.loops import Loop, Untouched
from tests.integrations import scenario
from tests.integrations import test_torchtitan as tried
from tests.integrations.titan import Trainer


def _alone() -> None:
    if not dist.is_initialized():
        store = f"file://{tempfile.mkdtemp()}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)


def _guarded(run_dir: Path, steps: int) -> nn.Module:
    _alone()
    return tried.guarded(Trainer(scenario.order(), steps=steps), run_dir).model_parts[0]


def _untouched(folder: Path) -> Untouched:
    _alone()

    def train(batches: list[list[int]]) -> nn.Module:
        trainer = Trainer([row for batch in batches for row in batch], steps=len(batches))
        trainer.train()
        return trainer.model_parts[0]

    return train


def _interrupted(run_dir: Path, kill_at: int | None) -> str:
    _alone()
    return tried.interrupted(run_dir, kill_at)


LOOP = Loop(
    guarded=_guarded,
    untouched=_untouched,
    interrupted=_interrupted,
    survivors=partial(tried.survivors, accumulate=1),
)
