"""The user's own loop under the Guard: what every other integration is measured by."""

import functools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import foreshock
from foreshock.core.errors import ConfigError
from tests.integrations import scenario


def parts(dropout=0.0, several=False):
    """A model, its optimizers and their schedules."""
    model = scenario.model(dropout)
    rest = list(model.parameters())
    optimizers = []
    if several:
        rest = [one for one in rest if one is not model.hidden.weight]
        optimizers = [torch.optim.Muon([model.hidden.weight], lr=scenario.LR)]
    optimizers.append(torch.optim.AdamW(rest, lr=scenario.LR))
    schedules = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1.0) for one in optimizers]
    return model, optimizers, schedules


def guarded(run_dir, *, dropout=0.0, accumulate=1, several=False, wrap=lambda m: m, **options):
    model, optimizer, scheduler = parts(dropout, several)
    model = wrap(model)
    if not several:
        (optimizer,), (scheduler,) = optimizer, scheduler
    defaults = {"recipe": scenario.recipe(), "max_steps": scenario.STEPS, "clip": scenario.CLIP}
    stream = scenario.stream(scenario.BATCH // accumulate)
    return model, foreshock.Guard(
        model,
        optimizer,
        stream,
        run_dir=run_dir,
        scheduler=scheduler,
        accumulate=accumulate,
        **{**defaults, **options},
    )


def untouched(batches, accumulate=1, several=False, wrap=lambda m: m):
    """The loop of PyTorch's tutorials."""
    rows = scenario.Rows()
    own, optimizers, schedules = parts(several=several)
    model = wrap(own)
    share = scenario.BATCH // accumulate
    for batch in batches:
        for start in range(0, scenario.BATCH, share):
            some = torch.utils.data.default_collate(
                [rows[row] for row in batch[start : start + share]]
            )
            (model(**some)["loss"] / accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), scenario.CLIP)
        for one in (*optimizers, *schedules):
            one.step()
        own.zero_grad()
    return own


def interrupted(run_dir, kill_at=None, several=False):
    for seed in (random.seed, np.random.seed, torch.manual_seed):  # all are part of the state
        seed(scenario.SEED)
    model, guard = guarded(
        run_dir, dropout=0.1, several=several, resume=Path(run_dir, "run.json").exists()
    )
    scenario.train(guard, model, lambda guard: guard.step_number == kill_at and scenario.die())
    return guard.digest()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_skips_rolls_back_and_ends_as_an_untouched_loop(tmp_path, accumulate, several):
    model, guard = guarded(tmp_path / "run", accumulate=accumulate, several=several)
    scenario.train(guard, model)
    assert guard.book.num_rollbacks > 0
    twin = functools.partial(untouched, accumulate=accumulate, several=several)
    scenario.check(tmp_path / "run", model, twin)


@pytest.mark.parametrize("several", [False, True])
def test_killed_and_started_again_it_ends_as_if_nothing_had_been(tmp_path, several):
    whole = interrupted(tmp_path / "whole", several=several)
    call = "from tests.integrations.test_plain import interrupted as go; "
    scenario.killed(f"{call} go({str(tmp_path / 'run')!r}, 75, {several})")
    assert interrupted(tmp_path / "run", several=several) == whole


def compiled(model):
    return torch.compile(model, backend="aot_eager")


def test_a_compiled_model_is_the_same_run_as_the_plain_one(tmp_path):
    """And on what survives it is the compiled loop, untouched."""
    model, guard = guarded(tmp_path / "run", wrap=compiled)
    scenario.train(guard, model)
    assert guard.book.num_rollbacks > 0
    scenario.check(tmp_path / "run", model._orig_mod, functools.partial(untouched, wrap=compiled))

    def train(name, *parts_of_it):
        for wrap, last in parts_of_it:
            torch.manual_seed(scenario.SEED)
            model, guard = guarded(
                tmp_path / name, dropout=0.1, wrap=wrap, max_steps=last, resume=None
            )
            scenario.train(guard, model)
        return guard.digest()

    def eager(model):  # computes as if it were not compiled, to the bit
        return torch.compile(model, backend="eager")

    def plain(model):
        return model

    expected = train("plain", (plain, 60))
    assert train("first", (eager, 30), (plain, 60)) == expected
    assert train("then", (plain, 30), (eager, 60)) == expected
    record = json.loads((tmp_path / "first/run.json").read_text())
    assert "Model" in str(record) and "OptimizedModule" not in str(record)


def test_what_cannot_be_gated_is_refused_among_several_too(tmp_path):
    model, optimizers, schedules = parts(several=True)
    stream, run_dir = scenario.stream(), tmp_path / "run"
    lbfgs = torch.optim.LBFGS(model.embedding.parameters())
    with pytest.raises(ConfigError, match="LBFGS"):
        foreshock.Guard(model, [optimizers[0], lbfgs], stream, run_dir=run_dir)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers[1])
    with pytest.raises(ConfigError, match="ReduceLROnPlateau"):
        foreshock.Guard(
            model, optimizers, stream, run_dir=run_dir, scheduler=[schedules[0], plateau]
        )
