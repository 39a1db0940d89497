"""The user's own loop under the Guard: what every other integration is measured by."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

import foreshock
from tests.integrations import scenario


def parts(dropout=0.0):
    model = scenario.model(dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=scenario.LR)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def guarded(run_dir, *, dropout=0.0, accumulate=1, **options):
    model, optimizer, scheduler = parts(dropout)
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


def train(guard, model, after_step=lambda guard: None):
    with guard:
        for batch in guard:
            guard.step(model(**batch)["loss"])
            after_step(guard)


def untouched(batches, accumulate=1):
    """The loop of PyTorch's tutorials."""
    rows = scenario.Rows()
    model, optimizer, scheduler = parts()
    share = scenario.BATCH // accumulate
    for batch in batches:
        for start in range(0, scenario.BATCH, share):
            some = torch.utils.data.default_collate(
                [rows[row] for row in batch[start : start + share]]
            )
            (model(**some)["loss"] / accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), scenario.CLIP)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return model


def interrupted(run_dir, kill_at=None):
    for seed in (random.seed, np.random.seed, torch.manual_seed):  # all are part of the state
        seed(scenario.SEED)
    model, guard = guarded(run_dir, dropout=0.1, resume=Path(run_dir, "run.json").exists())
    train(guard, model, lambda guard: guard.step_number == kill_at and scenario.die())
    return guard.digest()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_skips_rolls_back_and_ends_as_an_untouched_loop(tmp_path, accumulate):
    model, guard = guarded(tmp_path / "run", accumulate=accumulate)
    train(guard, model)
    assert guard.book.num_rollbacks > 0
    scenario.check(tmp_path / "run", model, lambda batches: untouched(batches, accumulate))


def test_killed_and_started_again_it_ends_as_if_nothing_had_been(tmp_path):
    whole = interrupted(tmp_path / "whole")
    call = "from tests.integrations.test_plain import interrupted as go; "
    scenario.killed(f"{call} go({str(tmp_path / 'run')!r}, 75)")
    assert interrupted(tmp_path / "run") == whole
