"""The Guard's clip is folded into the fused optimizer, `watch` clips by the norms it has anyway:
both train as `clip_grad_norm_` does."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foreshock.core.policy import Policy
from foreshock.watching import Watch
from tests.guard.programs import CADENCE, Training, guarded, loss_of, make
from tests.watching.trainings import everything, same_bits

STEPS, CLIP = 50, 0.05


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small models are faster on one thread, and the machine is shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def inner(training: Training) -> dict[str, torch.Tensor]:
    """Weights, moments and update counts."""
    found = {name: one.detach().clone() for name, one in training.model.state_dict().items()}
    for place, state in training.optimizer.state_dict()["state"].items():
        found |= {f"{place}.{name}": torch.as_tensor(one).clone() for name, one in state.items()}
    return found


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Weights to 1e-6 of the largest entry of each tensor, moments (sums of gradients) to 1e-5."""
    assert ours.keys() == theirs.keys()
    assert any(name.endswith(".exp_avg_sq") for name in ours)
    for name, value in ours.items():
        off = (value - theirs[name]).abs().max() / theirs[name].abs().max()
        assert off <= (1e-5 if "exp_avg" in name else 1e-6), f"{name} is off by {off:.1e}"


def by_torch(batches: list[torch.Tensor], optimizer: str, *, scale: float | None) -> Training:
    """Plain training on the same batches; clipping is active in every step."""
    training = make(optimizer=optimizer, scheduler=None)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale is not None)
    training.model.train()
    for step, batch in enumerate(batches):
        torch.manual_seed(step)
        scaler.scale(loss_of(training.model, batch)).backward()
        scaler.unscale_(training.optimizer)
        assert nn.utils.clip_grad_norm_(training.model.parameters(), CLIP) > 2 * CLIP
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()
    return training


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("optimizer", ["fused", "adamw"])
def test_the_guards(tmp_path: Path, optimizer: str, scaled: bool) -> None:
    training = make(optimizer=optimizer, scheduler=None, scaler=scaled)
    observing = dataclasses.replace(everything(), policy=Policy(watch_only=True), cadence=CADENCE)
    batches: list[torch.Tensor] = []
    training.model.train()
    with guarded(training, tmp_path / "run", recipe=observing, clip=CLIP, max_steps=STEPS) as guard:
        for batch in guard:
            batches.append(batch.clone())
            torch.manual_seed(guard.step_number)
            guard.step(loss_of(training.model, batch))
    assert len(batches) == STEPS
    assert all(guard.monitor.timeline.committed)
    theirs = by_torch(batches, optimizer, scale=2.0**10 if scaled else None)
    assert_same(inner(training), inner(theirs))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("optimizer", ["fused", "adamw"])
def test_watchs(optimizer: str, scaled: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(17, (8, 12), generator=generator) for _ in range(STEPS)]
    training = make(optimizer=optimizer, scheduler=None, scaler=scaled)
    scaler = training.scaler or torch.amp.GradScaler("cpu", enabled=False)
    training.model.train()
    with Watch(training.model, training.optimizer, recipe=everything()) as watched:
        for step, batch in enumerate(batches):
            torch.manual_seed(step)
            loss = loss_of(training.model, batch)
            scaler.scale(loss).backward()
            watched.loss(loss)
            scaler.unscale_(training.optimizer)
            watched.clip_(CLIP)
            scaler.step(training.optimizer)
            scaler.update()
            training.optimizer.zero_grad()
    theirs = by_torch(batches, optimizer, scale=2.0**10 if scaled else None)
    assert_same(inner(training), inner(theirs))


@pytest.mark.parametrize("bad", [math.nan, math.inf, "all NaN"])
@pytest.mark.parametrize("optimizer", ["fused", "adamw"])
def test_gradients_that_are_not_finite_leave_every_bit(
    tmp_path: Path, optimizer: str, bad: Any
) -> None:
    """Watched with everything on, in the Guard: parameters, both moments, update counts."""
    training = make(optimizer=optimizer, scheduler=None)
    training.model.train()
    observing = dataclasses.replace(everything(), policy=Policy(), cadence=CADENCE)
    spoiled: list[bool] = []

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        if not spoiled or not spoiled[-1]:
            return gradient
        found = torch.full_like(gradient, math.nan) if bad == "all NaN" else gradient.clone()
        if bad != "all NaN":
            found.view(-1)[3] = bad
        return found

    hook = training.model.out.weight.register_hook(spoil)
    with guarded(training, tmp_path / "run", recipe=observing, clip=CLIP, max_steps=23) as guard:
        for batch in guard:
            spoiled.append(guard.step_number in (11, 20))
            before = inner(training)
            guard.step(loss_of(training.model, batch))
            after = inner(training)
            changed = [n for n in after if n not in before or not same_bits(after[n], before[n])]
            assert (changed == []) == spoiled[-1]
    hook.remove()
    assert guard.attempt == 1
    committed = guard.monitor.timeline.committed.tolist()
    assert [step for step, made in enumerate(committed) if not made] == [11, 20]
