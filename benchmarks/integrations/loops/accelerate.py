"""Loops with an Accelerator."""

from pathlib import Path

import accelerate
from torch import nn

from benchmarks.integrations.loops import Loop, Untouched
from tests.integrations import scenario
from tests.integrations import test_accelerate as tried


def _guarded(run_dir: Path, steps: int) -> nn.Module:
    accelerator = accelerate.Accelerator(cpu=True)
    parts = tried.prepared(accelerator)
    scenario.train(tried.guarded(accelerator, parts, run_dir, max_steps=steps), parts[0])
    return accelerator.unwrap_model(parts[0])


def _untouched(folder: Path) -> Untouched:
    return tried.untouched(accelerate.Accelerator(cpu=True))


LOOP = Loop(guarded=_guarded, untouched=_untouched, interrupted=tried.interrupted)
