"""Loops with Lightning's Fabric."""

from pathlib import Path

from torch import nn

from benchmarks.integrations.loops import Loop, Untouched
from tests.integrations import scenario
from tests.integrations import test_fabric as tried


def _guarded(run_dir: Path, steps: int) -> nn.Module:
    fabric = tried.fabric_of()
    model, *rest = tried.set_up(fabric)
    scenario.train(tried.guarded(fabric, (model, *rest), run_dir, max_steps=steps), model)
    return model


def _untouched(folder: Path) -> Untouched:
    return tried.untouched(tried.fabric_of())


LOOP = Loop(guarded=_guarded, untouched=_untouched, interrupted=tried.interrupted)
