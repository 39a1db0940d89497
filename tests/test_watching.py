"""Watching changes nothing, and sees what there is to see."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError, LoopError
from foreshock.watching import Watch, watch
from tests.guard.programs import LENGTH, OPTIMIZERS, VOCABULARY, TinyModel, loss_of
from tests.signals.test_contract import hooks_of

Loop = Callable[[nn.Module, torch.optim.Optimizer, Any], None]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small models are faster on one thread, and the machine is shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def batch() -> torch.Tensor:
    return torch.randint(VOCABULARY, (8, LENGTH))


def training(optimizer: str = "adamw") -> tuple[nn.Module, torch.optim.Optimizer]:
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    model = TinyModel()
    model.train()
    return model, OPTIMIZERS[optimizer](model.parameters())


def steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    watched: Watch | None,
    count: int = 60,
    *,
    scaler: Any = None,
    clip: float | None = None,
    micro_steps: int = 1,
    spoil: Callable[[int, torch.Tensor], torch.Tensor] = lambda step, loss: loss,
) -> list[float]:
    """A loop that people write by hand; returns its true gradient norms."""
    norms = []
    for step in range(1, count + 1):
        for _ in range(micro_steps):
            loss = spoil(step, loss_of(model, batch()) / micro_steps)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if watched is not None:
                watched.loss(loss)
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            if watched is not None:
                watched.before_clip()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        else:
            scale = 1.0 if scaler is None else scaler.get_scale()
            grads = [one.grad for one in model.parameters() if one.grad is not None]
            norms.append(float(nn.utils.get_total_norm(grads)) / scale)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    return norms


def values(watched: Watch, series: str) -> list[float]:
    return [reading.value for reading in watched.readings(series)]


@pytest.mark.parametrize(
    ("optimizer", "scaled", "clip"),
    [
        ("adamw", False, None),
        ("adamw", True, None),
        ("fused", True, None),
        ("fused", True, 0.5),
        ("sgd", False, 0.5),
    ],
)
def test_training_is_bit_identical_with_and_without(
    optimizer: str, scaled: bool, clip: float | None
) -> None:
    ends = []
    for observed in (False, True):
        model, made = training(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8) if scaled else None
        watched = watch(model, made) if observed else None
        norms = steps(model, made, watched, scaler=scaler, clip=clip, micro_steps=2)
        if watched is not None:
            watched.close()
            found = values(watched, "grad_norm/global")
            assert found == pytest.approx(norms, rel=1e-4)
        ends.append((model.state_dict(), made.state_dict()["state"], torch.rand(2)))
    (weights, moments, drawn), (watched_weights, watched_moments, watched_drawn) = ends
    assert all(torch.equal(weights[key], watched_weights[key]) for key in weights)
    assert torch.equal(drawn, watched_drawn)
    for place, state in moments.items():
        for key, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(watched_moments[place][key]))


@pytest.mark.parametrize("optimizer", ["adamw", "fused"])
def test_an_overflow_that_the_scaler_skips(optimizer: str) -> None:
    model, made = training(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    with watch(model, made) as watched:
        spoil = lambda step, loss: loss * torch.inf if step == 3 else loss  # noqa: E731
        steps(model, made, watched, 5, scaler=scaler, spoil=spoil)
        readings = watched.readings("update_ratio/global")
    fused = optimizer == "fused"
    assert len(readings) == (5 if fused else 4)
    assert watched.monitor.timeline.committed.tolist() == (
        [True, True, False, True, True] if fused else [True] * 4
    )


def test_hooks_come_off() -> None:
    model, optimizer = training()
    clean = hooks_of(model)
    with watch(model, optimizer) as watched:
        assert hooks_of(model) != clean
        steps(model, optimizer, watched, 2)
    watched.close()
    assert hooks_of(model) == clean
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    steps(model, optimizer, None, 2)
    assert len(watched.readings("loss/global")) == 2


def test_hooks_come_off_after_an_exception_even_if_the_listener_raises_too() -> None:
    model, optimizer = training()
    clean = hooks_of(model)

    def listener(alarm: Alarm) -> None:
        raise KeyError("listener")

    spoil = lambda step, loss: loss * torch.nan if step == 2 else loss  # noqa: E731
    with pytest.raises(KeyError, match="listener"), watch(model, optimizer, on_alarm=listener) as w:
        steps(model, optimizer, w, 2, spoil=spoil)
    assert hooks_of(model) == clean
    assert not optimizer._optimizer_step_pre_hooks
    with pytest.raises(ZeroDivisionError), watch(model, optimizer, with_loss=False):
        raise ZeroDivisionError
    assert hooks_of(model) == clean


def test_alarms_are_told_while_the_loop_runs() -> None:
    model, optimizer = training("sgd")
    for group in optimizer.param_groups:
        group["lr"] = 1e-3
    heard: list[tuple[int, Alarm]] = []
    now = 0

    def spoil(step: int, loss: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now = step
        return loss * 20 if step == 50 else loss * torch.nan if step == 55 else loss

    with watch(model, optimizer, on_alarm=lambda alarm: heard.append((now, alarm))) as watched:
        steps(model, optimizer, watched, 57, spoil=spoil)
    kinds = {(alarm.series, alarm.kind, alarm.step) for _, alarm in heard}
    assert ("loss/global", AlarmKind.SPIKE, 50) in kinds
    assert ("loss/global", AlarmKind.NONFINITE, 55) in kinds
    assert all(alarm.step >= 50 for _, alarm in heard)
    assert {at - alarm.step for at, alarm in heard} == {1, 0}  # 0: drained on close
    assert [alarm for _, alarm in heard] == watched.alarms


def test_before_clip_gives_the_norm_that_clipping_hides() -> None:
    for told in (True, False):
        model, optimizer = training()
        with watch(model, optimizer) as watched:
            if not told:
                watched.before_clip = lambda: None
            norms = steps(model, optimizer, watched, 5, clip=1e-3)
            found = values(watched, "grad_norm/global")
        assert found == pytest.approx(norms if told else [1e-3] * 5, rel=1e-2)


def test_losses_of_micro_steps_are_averaged_and_terms_recorded() -> None:
    model, optimizer = training()
    with watch(model, optimizer, terms=["z"]) as watched:
        for factor in (1.0, 3.0):
            loss_of(model, batch()).backward()
            watched.loss(factor, z=torch.tensor([factor / 2]))
        optimizer.step()
        assert values(watched, "loss/global") == [2.0]
        assert values(watched, "loss/z") == [1.0]


def test_a_loss_that_was_not_told_stops_the_loop_with_a_reason() -> None:
    model, optimizer = training()
    with watch(model, optimizer) as watched:
        loss_of(model, batch()).backward()
        with pytest.raises(LoopError, match="before the loss was told"):
            optimizer.step()
        with pytest.raises(ConfigError, match=r"loss terms \['z'\]"):
            watched.loss(1.0, z=2.0)
        with pytest.raises(LoopError, match=r"the loss must be a single number.*\(2,\)"):
            watched.loss(torch.ones(2))
    with watch(model, optimizer, with_loss=False) as watched:
        optimizer.step()
        assert len(values(watched, "grad_norm/global")) == 1
        assert not [name for name in watched.series if name.startswith("loss")]


def test_two_at_once_see_the_same() -> None:
    model, optimizer = training()
    with watch(model, optimizer) as one, watch(model, optimizer, with_loss=False) as other:
        steps(model, optimizer, one, 4)
        for series in ("grad_norm/global", "update_ratio/global", "activation_norm/last_norm"):
            assert values(one, series) == values(other, series)
            assert len(values(one, series)) == 4
    steps(model, optimizer, None, 1)
    assert len(values(one, "grad_norm/global")) == 4


def test_a_training_that_goes_on_keeps_its_step_numbers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Watch(model, optimizer, last_step=97) as watched:
        for _ in range(5):
            loss = model(torch.ones(4, 2)).square().mean()
            loss.backward()
            watched.loss(loss)
            optimizer.step()
            optimizer.zero_grad()
    assert [reading.step for reading in watched.readings("loss/global")] == [98, 99, 100, 101, 102]
    assert [reading.step for reading in watched.readings("param_norm/global")] == [100]
