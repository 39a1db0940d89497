"""Lightning's Trainer."""

from pathlib import Path

from torch import nn

from benchmarks.integrations.loops import Loop
from tests.integrations import scenario
from tests.integrations import test_lightning as tried


def _guarded(run_dir: Path, steps: int) -> nn.Module:
    module = tried.Module()
    trainer = tried.trainer(run_dir.parent, tried.guard_callback(run_dir.parent), max_steps=steps)
    trainer.fit(module, tried.loader(scenario.Rows(), shuffle=True))
    return module


def _interrupted(run_dir: Path, kill_at: int | None) -> str:
    return tried.interrupted(run_dir, kill_at)[0]


LOOP = Loop(guarded=_guarded, untouched=tried.untouched, interrupted=_interrupted)
