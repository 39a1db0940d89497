"""Advice: the decisions of a guarded run, journalled, and the weights of an unguarded one."""

import dataclasses
import inspect
import json
from itertools import pairwise

import pytest
import torch
from typer.testing import CliRunner

from foreshock.cli.main import cli
from foreshock.core.errors import ConfigError
from foreshock.recipes import Recipe, standard
from foreshock.snapshots.codec import digest
from foreshock.update import Update
from tests.cli.programs import write
from tests.guard.programs import (
    Training,
    guarded,
    loss_of,
    make,
    poisoned_stages,
    recipe,
    run,
    take_step,
)

STEPS = 180
UNGATED = "gated" in inspect.signature(Update).parameters


def advising(**policy) -> Recipe:
    return dataclasses.replace(recipe(**policy), advise=True)


def training() -> Training:
    return make(stages=poisoned_stages(480, 200, 1600))


def hurt_gradient(training: Training, step: int) -> None:
    """Two NaN gradients, then steps as before."""
    if step in (70, 71):
        weight = training.model.last_norm.weight
        weight.grad = None
        handle = weight.register_hook(lambda grad: grad * torch.nan)
        training.track.setdefault("hooks", []).append(handle)
    else:
        for handle in training.track.pop("hooks", []):
            handle.remove()


def unguarded(training: Training, steps: int, *, burst: bool = False) -> None:
    """The plain loop that a user would write."""
    training.model.train()
    for step in range(1, steps + 1):
        if burst:
            hurt_gradient(training, step)
        loss_of(training.model, training.stream.next_batch().data).backward()
        training.optimizer.step()
        training.scheduler.step()
        training.optimizer.zero_grad(set_to_none=True)


def state(training: Training) -> str:
    return digest(
        {
            "model": training.model.state_dict(),
            "optimizer": training.optimizer.state_dict(),
            "scheduler": training.scheduler.state_dict(),
            "position": training.stream.position,
            "rng": torch.get_rng_state(),
        }
    )


def test_an_advised_run_is_the_unguarded_run_to_the_bit(tmp_path) -> None:
    plain = training()
    unguarded(plain, STEPS)
    advised = training()
    guard = guarded(advised, tmp_path / "run", max_steps=STEPS, recipe=advising())
    # what follows the end (a snapshot, a digest) draws nothing either
    run(advised, guard)
    assert guard.book.advices
    assert state(advised) == state(plain)


@pytest.mark.skipif(not UNGATED, reason="Update has no way to leave its gate open")
def test_a_gradient_that_is_nan_is_not_held_back_either(tmp_path) -> None:
    plain = training()
    unguarded(plain, 90, burst=True)
    advised = training()
    advised.model.train()
    with guarded(advised, tmp_path / "run", max_steps=90, recipe=advising()) as guard:
        for batch in guard:
            hurt_gradient(advised, guard.step_number + 1)
            guard.step(loss_of(advised.model, batch))
    assert guard.book.advices
    assert state(advised) == state(plain)
    assert any(not torch.isfinite(p).all() for p in advised.model.parameters())


def test_the_first_advice_is_the_plan_that_a_guarded_run_makes(tmp_path) -> None:
    guarded_one = training()
    acting = guarded(guarded_one, tmp_path / "acting", max_steps=STEPS)
    run(guarded_one, acting)
    advised_one = training()
    advising_ = guarded(advised_one, tmp_path / "advising", max_steps=STEPS, recipe=advising())
    run(advised_one, advising_)
    plan = next(record for record in acting.records if record["kind"] == "plan")
    advice = next(record for record in advising_.records if record["kind"] == "advice")
    for field in ("attempt", "step", "plan", "diagnosis", "alarms"):
        assert advice[field] == plan[field], field


def test_nothing_of_it_is_done(tmp_path) -> None:
    heard = []
    one = training()
    guard = guarded(
        one, tmp_path / "run", max_steps=STEPS, recipe=advising(),
        listener=lambda kind, content: heard.append((kind, content)),
    )  # fmt: skip
    run(one, guard)
    kinds = {record["kind"] for record in guard.records}
    done = {"plan", "action_done", "plan_done", "quarantined", "lr_scaled", "gate_limited"}
    assert kinds & {*done, "incident_closed", "halted", "verification", "skip"} == set()
    assert (guard.book.incidents, guard.attempt, guard.halted) == ([], 1, None)
    assert guard.num_quarantined == 0
    advices = [record for record in guard.records if record["kind"] == "advice"]
    assert [record["advice_id"] for record in advices] == list(range(1, len(advices) + 1))
    assert [content for kind, content in heard if kind == "advice"] == advices
    json.dumps(advices, allow_nan=False)


def test_an_episode_is_answered_once_and_the_next_one_anew(tmp_path) -> None:
    """What was advised was not tried: the next advice does not climb on from it."""
    one = make(stages=poisoned_stages(480, 40, 1600))
    guard = guarded(one, tmp_path / "run", max_steps=STEPS, recipe=advising(quiet_steps=5))
    one.model.train()
    with guard:
        for batch in guard:
            bad = 130 <= guard.step_number < 140
            take_step(one, guard, batch.flip(1) if bad else batch)
    alarmed = sorted({r["alarm"]["step"] for r in guard.records if r["kind"] == "alarm"})
    advices = [record["step"] for record in guard.records if record["kind"] == "advice"]
    assert len(advices) == len(set(advices)) >= 2
    for earlier, later in pairwise(advices):
        between = [step for step in alarmed if earlier <= step <= later]
        quiet = max(b - a for a, b in pairwise(between))
        assert quiet >= 5, "an episode was answered twice"
    rungs = [record["plan"]["rung"] for record in guard.records if record["kind"] == "advice"]
    assert "halt" not in rungs


def test_a_resumed_run_does_not_give_the_same_advice_again(tmp_path) -> None:
    one = training()
    first = guarded(one, tmp_path / "run", max_steps=90, recipe=advising())
    run(one, first)
    given = [record["step"] for record in first.records if record["kind"] == "advice"]
    assert given
    again = training()
    second = guarded(again, tmp_path / "run", max_steps=95, recipe=advising(), resume=True)
    run(again, second)
    steps = [record["step"] for record in second.records if record["kind"] == "advice"]
    assert steps[: len(given)] == given
    assert len(set(steps)) == len(steps)


def test_a_run_with_an_open_incident_is_not_advised(tmp_path) -> None:
    one = training()
    one.model.train()
    with guarded(one, tmp_path / "run", max_steps=STEPS) as guard:
        for batch in guard:
            take_step(one, guard, batch)
            if guard.book.open is not None and guard.book.unfinished_plan is None:
                break
    assert guard.book.open is not None
    with pytest.raises(ConfigError, match="open incident"):
        guarded(training(), tmp_path / "run", recipe=advising(), resume=True)


def test_the_sample_that_a_rule_would_refuse_trains(tmp_path) -> None:
    with_rules = dataclasses.replace(standard({}), advise=True, cadence=recipe().cadence)
    one = training()
    with guarded(one, tmp_path / "run", recipe=with_rules) as guard:
        assert guard._feed.stream.rules == ()


BLOWN_UP = """
def bad(model, batch):
    global calls
    calls += 1
    return loss(model, batch) * (float("nan") if calls == 30 else 1.0)
calls = 0
"""


def test_the_command_advises_and_goes_on(tmp_path, monkeypatch) -> None:
    write(tmp_path, more=BLOWN_UP, loss="bad")
    monkeypatch.chdir(tmp_path)
    command = ["run", "train.py:program", "--run-dir", "run", "--max-steps", "40", "--advise"]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert "advice, not carried out" in done.stderr
    assert "1 piece(s) of advice, none carried out" in done.stdout
    assert "0 incident(s)" in done.stdout
