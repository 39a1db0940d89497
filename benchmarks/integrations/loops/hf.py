"""Hugging Face's Trainer."""

from pathlib import Path
from typing import Any

import transformers
from torch import nn

from benchmarks.integrations.loops import Loop
from foreshock.integrations.hf import ForeshockCallback
from tests.integrations import scenario
from tests.integrations import test_hf as tried


def _guarded(run_dir: Path, steps: int) -> nn.Module:
    model = scenario.model()
    trainer = tried.trainer(run_dir.parent / "out", model, scenario.Rows(), max_steps=steps)
    ForeshockCallback(run_dir, recipe=scenario.recipe()).attach(trainer)
    trainer.train()
    return model


def _interrupted(run_dir: Path, kill_at: int | None) -> str:
    transformers.set_seed(scenario.SEED)
    model = scenario.model(dropout=0.1)
    trainer = tried.trainer(run_dir.parent / "out", model, scenario.Rows())
    callback = ForeshockCallback(run_dir, recipe=scenario.recipe()).attach(trainer)

    class Killing(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == kill_at:
                scenario.die()

    trainer.add_callback(Killing())
    trainer.train()
    assert callback.guard is not None
    return callback.guard.digest()


LOOP = Loop(guarded=_guarded, untouched=tried.untouched, interrupted=_interrupted)
