"""The factor on the learning rate: in the update, and nowhere else."""

import json

import pytest
import torch

from tests.guard.programs import guarded, make, run, take_step


@pytest.mark.parametrize(
    ("optimizer", "scheduler"), [("adamw", "lambda"), ("fused", "one_cycle"), ("adamw", "cosine")]
)
def test_nobody_else_sees_it(tmp_path, optimizer, scheduler):
    plain = make(optimizer=optimizer, scheduler=scheduler)
    run(plain, guarded(plain, tmp_path / "plain", max_steps=30))
    slowed = make(optimizer=optimizer, scheduler=scheduler)
    used = []
    inner = slowed.optimizer.step

    def spy(*args, **kwargs):
        used.append(slowed.optimizer.param_groups[0]["lr"])
        return inner(*args, **kwargs)

    slowed.optimizer.step = spy
    guard = guarded(slowed, tmp_path / "slowed", max_steps=30)
    guard._control.begin(1, 0)
    guard._control.scale_lr(0.25, 11)
    guard._control.scale_lr(0.25, 11)  # doing it twice is doing it once
    rates = []
    slowed.model.train()
    with guard:
        for batch in guard:
            rates.append(slowed.optimizer.param_groups[0]["lr"])
            take_step(slowed, guard, batch)
    factors = [now / rate for now, rate in zip(used, rates, strict=True)]
    assert factors == pytest.approx([1.0] * 10 + [0.25] * 20)
    assert slowed.scheduler.state_dict() == plain.scheduler.state_dict()
    ours, theirs = slowed.optimizer.state_dict(), plain.optimizer.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    for snapshot in sorted((tmp_path / "slowed/snapshots").iterdir()):
        twin = tmp_path / "plain/snapshots" / snapshot.name
        structures = [
            json.loads((path / "manifest.json").read_text())["body"]["structure"]["d"]
            for path in (snapshot, twin)
        ]
        trees = [{json.dumps(k): v for k, v in s} for s in structures]
        key = json.dumps({"v": "training"})
        assert trees[0][key] == trees[1][key]
    observed = guard.monitor.timeline.values("lr/global")
    assert observed == pytest.approx(used, rel=1e-6)


def test_it_is_taken_back_when_the_optimizer_raises(tmp_path):
    training = make()

    def fail(*_args, **_kwargs):
        raise ZeroDivisionError

    training.optimizer.step = fail
    rate = training.optimizer.param_groups[0]["lr"]
    with guarded(training, tmp_path / "run") as guard:
        guard._control.scale_lr(0.5, 1)
        batch = next(guard)
        with pytest.raises(ZeroDivisionError):
            take_step(training, guard, batch)
    assert training.optimizer.param_groups[0]["lr"] == rate


def test_a_rate_in_a_tensor(tmp_path):
    training = make(scheduler=None)
    rate = torch.tensor(0.01)
    training.optimizer = torch.optim.AdamW(training.model.parameters(), lr=rate, foreach=False)
    guard = guarded(training, tmp_path / "run", max_steps=3)
    guard._control.scale_lr(0.5, 1)
    run(training, guard)
    assert training.optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.01)
    assert guard.monitor.timeline.values("lr/global").tolist() == pytest.approx([0.005] * 3)
