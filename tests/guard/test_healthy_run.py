"""Watching changes nothing: a healthy guarded run is the hand-written loop."""

import pytest
import torch

from foreshock.snapshots.codec import digest
from tests.guard.programs import Training, guarded, loss_of, make, take_step

STEPS = 25


def by_hand(training: Training, *, clip: float | None = None, accumulate: int = 1) -> None:
    model, optimizer, scaler = training.model, training.optimizer, training.scaler
    model.train()
    for _ in range(STEPS):
        for _ in range(accumulate):
            loss = loss_of(model, training.stream.next_batch().data) / accumulate
            (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if training.scheduler is not None:
            training.scheduler.step()
        optimizer.zero_grad(set_to_none=True)


def by_guard(training: Training, run_dir, **options) -> None:
    training.model.train()
    with guarded(training, run_dir, max_steps=STEPS, **options) as guard:
        for batch in guard:
            take_step(training, guard, batch)
        assert guard.book.incidents == []
        assert guard.attempt == 1


def states(training: Training) -> dict:
    scaler = None if training.scaler is None else training.scaler.state_dict()
    return {
        "model": training.model.state_dict(),
        "optimizer": training.optimizer.state_dict(),
        "scheduler": training.scheduler.state_dict(),
        "scaler": scaler,
        "position": training.stream.position,
        "rng": torch.get_rng_state(),
    }


@pytest.mark.parametrize("scheduler", ["lambda", "one_cycle", "cosine"])
@pytest.mark.parametrize("optimizer", ["adamw", "fused", "sgd", "fused_sgd"])
def test_without_clip_every_bit_is_that_of_the_plain_loop(tmp_path, optimizer, scheduler):
    plain = make(optimizer=optimizer, scheduler=scheduler)
    by_hand(plain)
    expected = digest(states(plain))
    watched = make(optimizer=optimizer, scheduler=scheduler)
    by_guard(watched, tmp_path / "run")
    assert digest(states(watched)) == expected


@pytest.mark.parametrize("scaler", [False, True], ids=["plain", "scaler"])
@pytest.mark.parametrize("optimizer", ["adamw", "fused"])
def test_accumulation_changes_no_bit(tmp_path, optimizer, scaler):
    plain = make(optimizer=optimizer, scaler=scaler)
    by_hand(plain, accumulate=3)
    expected = digest(states(plain))
    watched = make(optimizer=optimizer, scaler=scaler)
    by_guard(watched, tmp_path / "run", accumulate=3)
    assert digest(states(watched)) == expected


@pytest.mark.parametrize("scaler", [False, True], ids=["plain", "scaler"])
@pytest.mark.parametrize("optimizer", ["adamw", "fused", "sgd", "fused_sgd"])
def test_a_clip_that_bites_agrees_to_rounding(tmp_path, optimizer, scaler):
    plain = make(optimizer=optimizer, scaler=scaler)
    by_hand(plain, clip=0.5)
    watched = make(optimizer=optimizer, scaler=scaler)
    by_guard(watched, tmp_path / "run", clip=0.5)
    untouched = make(optimizer=optimizer, scaler=scaler)
    by_hand(untouched)
    theirs = untouched.model.state_dict()
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(watched.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)
    assert any(
        not torch.allclose(theirs[n], v, atol=1e-4) for n, v in plain.model.state_dict().items()
    )


def test_global_flags_and_hooks_are_as_before(tmp_path):
    def flags():
        return (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.get_float32_matmul_precision(),
            torch.is_anomaly_enabled(),
            torch.get_num_threads(),
        )

    before = flags()
    training = make(optimizer="fused", scheduler=None)
    attributes = set(vars(training.optimizer))
    with guarded(training, tmp_path / "run", max_steps=3, clip=0.1) as guard:
        assert any(m._forward_pre_hooks for m in training.model.modules())
        for batch in guard:
            take_step(training, guard, batch)
            assert flags() == before
    assert flags() == before
    for module in training.model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
        assert not module._backward_hooks
    assert not any(p._backward_hooks for p in training.model.parameters())
    assert set(vars(training.optimizer)) == attributes
