"""A skipped step: nothing of the weights and the optimizer moves, everything else does."""

import numpy as np
import pytest
import torch

from foreshock.faults.nan_gradient import NanGradient
from foreshock.snapshots.codec import digest
from foreshock.snapshots.parts import clone_tree
from foreshock.update import Update, trained_parameters
from tests.guard.programs import guarded, loss_of, make, recipe, run, take_step

OPTIMIZERS = ["adamw", "fused", "sgd", "fused_sgd"]


def inner(training):
    optimizer = training.optimizer.state_dict()["state"]
    return digest(clone_tree({"model": training.model.state_dict(), "optimizer": optimizer}))


def spoil(training):
    NanGradient().inject(training.model, training.optimizer, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("step", "scaler", "clip"),
    [(1, False, None), (1, True, 0.5), (2, False, 0.5), (2, True, None), (30, True, 0.5)],
    ids=str,
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_and_moments_keep_every_bit(tmp_path, optimizer, step, scaler, clip):
    training = make(optimizer=optimizer, scaler=scaler, scheduler="lambda")
    training.model.train()
    with guarded(training, tmp_path / "run", max_steps=step + 2, clip=clip) as guard:
        for batch in guard:
            now = guard.step_number + 1
            if now == step:
                spoil(training)
                before, position = inner(training), training.stream.position
                rate, scale = training.scheduler.last_epoch, training.scaler
                scale = scale and scale.get_scale()
            take_step(training, guard, batch)
            if now == step:
                assert guard.step_number == step
                assert inner(training) == before
                assert training.scheduler.last_epoch == rate + 1
                assert training.scaler is None or training.scaler.get_scale() == scale / 2
                assert not any(torch.isnan(p).any() for p in training.model.parameters())
            elif now == step + 1:
                assert inner(training) != before
                assert training.stream.position > position
        assert guard.step_number == step + 2
        assert guard.attempt == 1
        assert guard.monitor.timeline.committed.tolist() == [s != step for s in range(1, step + 3)]


def test_a_skipped_first_step_leaves_nothing_behind_with_any_optimizer(tmp_path):
    """The step after it is then a first step, as if the skipped one had not been."""
    for optimizer in OPTIMIZERS:
        results = []
        for skips in (False, True):
            training = make(optimizer=optimizer, scheduler=None)
            guard = guarded(training, tmp_path / f"{optimizer}{skips}", max_steps=1 + skips)
            training.model.eval()  # no dropout, so that both draw nothing
            with guard:
                for batch in guard:
                    if guard.step_number == 0 and skips:
                        spoil(training)
                        take_step(training, guard, batch)
                        assert training.optimizer.state_dict()["state"] == {}
                        training.stream.load_state_dict({"position": 0})
                    else:
                        take_step(training, guard, batch)
            results.append(inner(training))
        assert results[0] == results[1], optimizer


def test_only_the_first_step_of_a_fused_optimizer_waits():
    training = make(optimizer="fused_sgd")
    update = Update(training.optimizer, trained_parameters(training.model, training.optimizer))
    for first in (True, False, False):
        loss = training.model(torch.zeros(2, 3, dtype=torch.long)).sum()
        update.backward(loss)
        assert update._makes_state() is first
        _, norm = update.gradient_sizes()
        update.commit_or_skip(norm, float("inf"), 1.0)


def test_one_nan_gradient_is_no_incident(tmp_path):
    training = make()
    guard = guarded(training, tmp_path / "run", max_steps=60)
    run(training, guard, before_step=lambda g, t: g.step_number == 30 and spoil(t))
    assert guard.book.incidents == []
    skips = [r["step"] for r in guard._journal.records if r["kind"] == "skip"]
    assert skips == [31]


def test_too_many_in_a_row_roll_back(tmp_path):
    training = make()
    seen = []

    def broken(guard, training):
        seen.append(guard.step_number + 1)
        if guard.attempt == 1 and guard.step_number >= 30:
            spoil(training)

    guard = guarded(training, tmp_path / "run", max_steps=60, recipe=recipe(max_skips_in_a_row=3))
    run(training, guard, before_step=broken)
    (incident,) = guard.book.incidents
    assert incident.plans[-1].plan.rung == "rollback"
    assert incident.plans[-1].step == 34  # the fourth in a row
    assert guard.attempt == 2
    assert guard.step_number == 60
    assert seen.count(31) == 2


@pytest.mark.parametrize("step", [1, 4, 35])
def test_a_nan_loss_whose_update_was_made_rolls_back_at_once(tmp_path, step):
    training = make()
    training.model.train()
    with guarded(training, tmp_path / "run", max_steps=50) as guard:
        for batch in guard:
            if guard.step_number + 1 == step and guard.attempt == 1:
                guard.step(loss_of(training.model, batch) + torch.nan)
            else:
                take_step(training, guard, batch)
    (incident,) = guard.book.incidents
    assert incident.plans[0].step == step
    assert incident.plans[0].plan.rung == "rollback"
    assert incident.plans[0].plan.target_step == max(0, (step - 1) // 5 * 5)
    assert incident.outcome == "recovered"


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_nan_losses_whose_updates_were_skipped_are_gone_back_for_from_the_third_on(
    tmp_path, num_steps
):
    training = make()
    training.model.train()
    with guarded(training, tmp_path / "run", max_steps=50) as guard:
        for batch in guard:
            if 35 <= guard.step_number + 1 < 35 + num_steps and guard.attempt == 1:
                weight = training.model.last_norm.weight
                kept = weight.detach().clone()
                weight.data[0] = torch.nan
                take_step(training, guard, batch)
                weight.data.copy_(kept)
            else:
                take_step(training, guard, batch)
    assert all(torch.isfinite(p).all() for p in training.model.parameters())
    if num_steps < 3:
        assert guard.book.incidents == []
        skipped = [one["step"] for one in guard.records if one["kind"] == "skip"]
        assert skipped == [35, 36][:num_steps]
        return
    (incident,) = guard.book.incidents
    assert (incident.plans[0].step, incident.plans[0].plan.rung) == (37, "rollback")
    assert incident.plans[0].plan.target_step == 30
    assert incident.outcome == "recovered"


@pytest.mark.parametrize("optimizer", ["adamw", "fused"])
def test_an_overflow_is_the_scalers_business(tmp_path, optimizer):
    training = make(optimizer=optimizer, scaler=True)
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=1000)
    for parameter in training.model.parameters():
        parameter.register_hook(lambda grad: grad.where(grad.abs() < 65504, torch.inf))  # as fp16
    guard = guarded(training, tmp_path / "run", max_steps=40, clip=1.0)
    run(training, guard)
    assert guard.book.incidents == []
    assert guard.attempt == 1
    skips = [r["step"] for r in guard._journal.records if r["kind"] == "skip"]
    assert skips[:5] == [1, 2, 3, 4, 5]  # more in a row than the policy would bear with
    assert training.scaler.get_scale() == 2.0 ** (24 - len(skips))


def test_the_gate_skips_what_it_was_told_to(tmp_path):
    """Spikes of the gradient alone: the gate is lowered, and no later one gets through."""
    training = make()

    def spike(guard, training):
        if 40 <= guard.step_number < 45:
            weight = training.model.embedding.weight
            hook = weight.register_hook(lambda grad: (hook.remove(), grad * 100)[1])

    guard = guarded(training, tmp_path / "run", max_steps=60, clip=1.0)
    run(training, guard, before_step=spike)
    (incident,) = guard.book.incidents
    (plan,) = incident.plans
    assert plan.plan.rung == "skip"
    first = plan.plan.actions[0].arguments["first_step"]
    assert first == plan.step + 2  # one step is under way when a step is read
    committed = dict(
        zip(guard.monitor.timeline.steps, guard.monitor.timeline.committed, strict=True)
    )
    assert [s for s in range(41, 46) if not committed[s]] == list(range(first, 46))
