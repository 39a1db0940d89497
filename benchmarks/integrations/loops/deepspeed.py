"""DeepSpeed's engine under ZeRO-2, on one rank."""

import tempfile
from pathlib import Path

import torch.distributed as dist
from torch import nn

from benchmarks.integrations.loops import Loop, Untouched
from tests.integrations import scenario
from tests.integrations import test_deepspeed as tried

_STAGE = 2


def _alone() -> None:
    if not dist.is_initialized():
        tried.join(0, 1)
        store = f"file://{tempfile.mkdtemp()}/store"
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)


def _guarded(run_dir: Path, steps: int) -> nn.Module:
    _alone()
    engine = tried.made(_STAGE)
    scenario.train(tried.guarded(engine, run_dir, max_steps=steps), engine)
    return tried.whole(engine)


def _untouched(folder: Path) -> Untouched:
    _alone()
    return tried.untouched(_STAGE)


def _interrupted(run_dir: Path, kill_at: int | None) -> str:
    _alone()
    found = tried.interrupted(run_dir, _STAGE, kill_at)
    assert found is not None
    return str(found)


LOOP = Loop(guarded=_guarded, untouched=_untouched, interrupted=_interrupted)
