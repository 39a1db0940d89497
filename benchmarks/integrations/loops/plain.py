"""The user's own loop."""

from pathlib import Path

from torch import nn

from benchmarks.integrations.loops import Loop
from tests.integrations import scenario
from tests.integrations import test_plain as tried


def _guarded(run_dir: Path, steps: int) -> nn.Module:
    model, guard = tried.guarded(run_dir, max_steps=steps)
    scenario.train(guard, model)
    return model


LOOP = Loop(
    guarded=_guarded, untouched=lambda folder: tried.untouched, interrupted=tried.interrupted
)
