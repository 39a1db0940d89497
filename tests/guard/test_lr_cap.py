"""The cap on the rate: it undoes a jump that lasts, and is nothing where it is over."""

import numpy as np
import pytest
import torch

from foreshock.faults.lr_jump import LrJump
from tests.guard.programs import guarded, make, run, take_step

FROM, STEPS = 11, 30


def capped_run(tmp_path, *, fault=None, cap=None, **options):
    """Rates as updates used them, the training, and the Guard; a fault strikes at step `FROM`."""
    training = make(**options)
    guard = guarded(training, tmp_path, max_steps=STEPS)
    if cap is not None:
        guard._control.begin(1, 0)
        guard._control.cap_lr(cap, FROM, 10, 5)
        guard._control.cap_lr(cap, FROM, 10, 5)  # doing it twice is doing it once
    used = []
    inner = training.optimizer.step

    def spy(*args, **kwargs):
        used.append(float(training.optimizer.param_groups[0]["lr"]))
        return inner(*args, **kwargs)

    training.optimizer.step = spy
    training.model.train()
    with guard:
        for batch in guard:
            if guard.step_number + 1 == FROM and fault is not None:
                fault.inject(training.model, training.optimizer, np.random.default_rng(0))
            take_step(training, guard, batch)
    return used, training, guard


def same_state(ours, theirs) -> bool:
    pairs = zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("optimizer", ["adamw", "fused"])
def test_a_jump_that_lasts_is_undone_and_comes_back_by_degrees(tmp_path, optimizer):
    options = {"optimizer": optimizer, "scheduler": "lambda"}
    plain, _, _ = capped_run(tmp_path / "plain", **options)
    cap, fault = plain[FROM - 2], LrJump(factor=2.0, num_updates=None)
    used, training, guard = capped_run(tmp_path / "capped", fault=fault, cap=cap, **options)
    shares = [0.0] * 20 + [0.2, 0.4, 0.6, 0.8] + [1.0] * 6
    raised = [rate * (2 if step >= FROM else 1) for step, rate in enumerate(plain, 1)]
    expected = [
        min(rate, cap) + s * max(0, rate - cap) for rate, s in zip(raised, shares, strict=True)
    ]
    assert used == pytest.approx([*plain[: FROM - 1], *expected[FROM - 1 :]])
    assert max(used[FROM - 1 : 20]) <= cap * (1 + 1e-12)
    assert training.optimizer.param_groups[0]["lr"] == training.scheduler.get_last_lr()[0]
    assert guard.monitor.timeline.values("lr/global") == pytest.approx(used, rel=1e-6)
    assert guard._control.overrides.in_force(FROM) == [f"the learning rate is at most {cap:.4g}"]


@pytest.mark.parametrize("num_updates", [1, 4])
def test_a_glitch_under_a_cap_trains_as_if_it_had_not_been(tmp_path, num_updates):
    plain, healthy, _ = capped_run(tmp_path / "plain", scheduler="lambda")
    fault, cap = LrJump(factor=20.0, num_updates=num_updates), plain[FROM - 2]
    used, struck, _ = capped_run(tmp_path / "capped", fault=fault, cap=cap, scheduler="lambda")
    assert used[FROM - 1 + num_updates :] == plain[FROM - 1 + num_updates :]
    pairs = zip(struck.model.parameters(), healthy.model.parameters(), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scheduler", ["lambda", "cosine", "one_cycle"])
def test_a_cap_that_the_schedule_does_not_reach_changes_no_bit(tmp_path, scheduler):
    plain, healthy, before = capped_run(tmp_path / "plain", scheduler=scheduler)
    used, capped, after = capped_run(tmp_path / "capped", cap=max(plain), scheduler=scheduler)
    assert used == plain
    assert same_state(capped, healthy)
    name = "loss/global"
    ours, theirs = (one.monitor.timeline.values(name).tolist() for one in (after, before))
    assert ours == theirs


def test_it_is_rebuilt_on_resume_and_told_in_the_journal(tmp_path):
    own = capped_run(tmp_path / "plain", scheduler=None)[0][0]
    capped_run(tmp_path / "run", cap=own / 2, scheduler=None)
    training = make(scheduler=None)
    guard = guarded(training, tmp_path / "run", max_steps=STEPS + 2, resume=True)
    (record,) = [one for one in guard.records if one["kind"] == "lr_capped"]
    assert (record["max_lr"], record["first_step"], record["hold_steps"]) == (own / 2, FROM, 10)
    assert guard._control.tuning(FROM).lr(own) == own / 2
    assert guard._control.tuning(FROM - 1).lr(own) == own
    run(training, guard)
