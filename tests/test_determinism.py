"""Steps run twice: what is exact is said to be, what is not is named, and no bit is left behind."""

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from foreshock.core.errors import ConfigError, ProgramError
from foreshock.core.program import Program
from foreshock.determinism import check_determinism
from foreshock.snapshots.codec import digest
from foreshock.snapshots.parts import GlobalRandomPart
from tests.guard.programs import clean_stages, loss_of, make


def program(loss: Any = loss_of, **options: Any) -> Program:
    made = make(tracked=True, **options)
    made.model.train()
    return Program(
        model=made.model, optimizer=made.optimizer, stream=made.stream, loss=loss,
        scheduler=made.scheduler, scaler=made.scaler, track=made.track, clip=1.0,
    )  # fmt: skip


def state(one: Program) -> str:
    tracked = {
        name: repr(getattr(thing, "bit_generator", thing).state)
        if isinstance(thing, np.random.Generator)
        else repr(thing.getstate())
        if isinstance(thing, random.Random)
        else thing.get_state()
        if isinstance(thing, torch.Generator)
        else thing.state_dict()
        for name, thing in one.track.items()
    }
    whole = [
        one.model.state_dict(), one.optimizer.state_dict(), one.stream.state_dict(),
        one.scheduler.state_dict(), None if one.scaler is None else one.scaler.state_dict(),
        tracked, GlobalRandomPart().capture(),
    ]  # fmt: skip
    return digest(whole)


def train(one: Program, steps: int) -> None:
    for _ in range(steps):
        one.loss(one.model, one.stream.next_batch().data).backward()
        one.optimizer.step()
        one.optimizer.zero_grad()
        one.scheduler.step()


@pytest.mark.parametrize(
    ("optimizer", "scaler", "steps_before"),
    [("adamw", False, 0), ("adamw", False, 7), ("fused", True, 3), ("sgd", False, 2)],
)
def test_what_is_exact_is_said_to_be_and_nothing_is_changed(optimizer, scaler, steps_before):
    one = program(optimizer=optimizer, scaler=scaler)
    if not scaler:
        train(one, steps_before)
    one.model.mlp.eval()
    one.stream.rules = (object(),)
    modes = [module.training for module in one.model.modules()]
    rules, before = one.stream.rules, state(one)
    found = check_determinism(one)
    assert state(one) == before
    assert [module.training for module in one.model.modules()] == modes
    assert one.stream.rules is rules
    assert found.equal and found.differing == () and found.first_step is None
    assert found.num_steps == 3
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["equal"] is True
    assert "exact" in found.sentence
    assert not [m for m in one.model.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not [p for p in one.model.parameters() if p._post_accumulate_grad_hooks]


def test_a_run_that_was_checked_trains_as_one_that_was_not():
    ends = []
    for checked in (False, True):
        one = program()
        train(one, 5)
        if checked:
            assert check_determinism(one, num_steps=2).equal
        train(one, 5)
        ends.append(state(one))
    assert ends[0] == ends[1]


def test_a_forward_that_is_never_the_same_is_named():
    calls = itertools.count()

    def loss(model, batch):
        return loss_of(model, batch) * (1 + 1e-6 * next(calls))

    one = program(loss)
    before = state(one)
    found = check_determinism(one)
    assert not found.equal
    assert (found.first_step, found.where, found.differing[0]) == (1, "forward", "loss")
    assert found.differing[1].startswith("gradient/last_norm.")  # where the backward pass begins
    assert found.num_differing > len(found.differing)
    assert state(one) == before
    assert "not exact" in found.sentence and "after step 1 the forward" in found.sentence


def test_a_backward_that_is_never_the_same_is_named_by_its_tensor():
    one = program()
    calls = itertools.count()
    # As an atomic sum does: the same loss, another last bit of one gradient.
    one.model.out.bias.register_hook(lambda gradient: gradient * (1 + 1e-5 * next(calls)))
    found = check_determinism(one)
    assert (found.first_step, found.where) == (1, "backward")
    assert [name for name in found.differing if name.startswith("gradient/")] == [
        "gradient/out.bias"
    ]
    assert "loss" not in found.differing
    assert "model/embedding.weight" in found.differing  # through the clip


def test_an_update_that_is_never_the_same_is_told_from_the_backward_pass():
    one = program()
    calls = itertools.count()

    def nudge(optimizer, _args, _kwargs):
        moments = optimizer.state[one.model.out.bias]["exp_avg"]
        moments.mul_(1 + 1e-3 * next(calls))

    one.optimizer.register_step_post_hook(nudge)
    found = check_determinism(one)
    assert (found.first_step, found.where) == (1, "update")
    assert found.differing == ("optimizer/out.bias/exp_avg",)


def test_a_generator_that_is_not_rewound_is_found_where_it_first_matters():
    hidden = np.random.default_rng(0)

    def loss(model, batch):
        return loss_of(model, batch) * (1 + 1e-3 * hidden.random())

    assert check_determinism(program(loss)).where == "forward"


def test_a_late_difference_tells_its_step():
    calls = itertools.count()

    def loss(model, batch):
        return loss_of(model, batch) * (2.0 if next(calls) == 4 else 1.0)

    found = check_determinism(program(loss))
    assert (found.first_step, found.where) == (2, "forward")


def test_data_that_ends_is_compared_as_far_as_it_goes():
    stages = clean_stages(24)
    stages[0] = type(stages[0])(name="clean", sources=stages[0].sources)
    assert check_determinism(program(stages=stages), num_steps=9).num_steps == 3
    with pytest.raises(ConfigError, match="one whole step"):
        one = program(stages=stages)
        train(one, 3)
        check_determinism(one)
    with pytest.raises(ConfigError, match="num_steps=0"):
        check_determinism(program(), num_steps=0)


def test_a_loss_that_raises_leaves_the_program_as_it_was():
    calls = itertools.count()

    def loss(model, batch):
        if next(calls) == 4:
            raise ZeroDivisionError
        return loss_of(model, batch)

    one = program(loss)
    before = state(one)
    with pytest.raises(ProgramError, match="ZeroDivisionError"):
        check_determinism(one)
    assert state(one) == before
