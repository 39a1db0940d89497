"""Several optimizers as one: the same updates, the same state, the same groups."""

import copy

import pytest
import torch

import foreshock
from foreshock.core.errors import ConfigError
from foreshock.several import SeveralOptimizers, as_one_optimizer, as_one_scheduler


def made(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Embedding(7, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 7)
    )
    matrices = [model[1].weight]
    rest = [one for one in model.parameters() if one is not model[1].weight]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.02),
        torch.optim.AdamW([{"params": rest[:1]}, {"params": rest[1:], "lr": 3e-3}], lr=1e-2),
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(one, lambda s: 1 / (1 + s)) for one in optimizers
    ]
    return model, optimizers, schedules


def train(model, step, steps, first=0):
    for number in range(first, first + steps):
        x = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(number))
        torch.nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        step()


def by_hand(optimizers, schedules):
    def step():
        for one in (*optimizers, *schedules):
            one.step()
        for one in optimizers:
            one.zero_grad()

    return step


def as_one(optimizers, schedules):
    optimizer, schedule = as_one_optimizer(optimizers), as_one_scheduler(schedules)

    def step():
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return optimizer, schedule, step


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_updates_are_those_of_each_by_itself():
    model, *parts = made()
    twin, *theirs = made()
    _, _, step = as_one(*parts)
    train(model, step, 6)
    train(twin, by_hand(*theirs), 6)
    assert equal(model, twin)
    assert not equal(model, made()[0])


def test_state_comes_back_in_another_process_too():
    model, *parts = made()
    optimizer, schedule, step = as_one(*parts)
    train(model, step, 3)
    weights = copy.deepcopy(model.state_dict())
    saved = copy.deepcopy((optimizer.state_dict(), schedule.state_dict()))
    train(model, step, 3, first=3)
    fresh, *new = made(seed=1)
    again, its_schedule, its_step = as_one(*new)
    fresh.load_state_dict(weights)
    again.load_state_dict(saved[0])
    its_schedule.load_state_dict(saved[1])
    train(fresh, its_step, 3, first=3)
    assert equal(fresh, model)


def test_groups_and_state_are_those_of_the_members():
    model, optimizers, schedules = made()
    optimizer, _, step = as_one(optimizers, schedules)
    train(model, step, 1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.005, 0.0015]
    optimizer.param_groups[1]["lr"] = 7.0
    assert optimizers[1].param_groups[0]["lr"] == 7.0
    parameters = list(model.parameters())
    assert len(optimizer.state) == len(list(optimizer.state)) == len(parameters)
    for one in parameters:
        owner = optimizers[0] if one is model[1].weight else optimizers[1]
        assert optimizer.state[one] is owner.state[one]
        assert one in optimizer.state
    stranger = torch.nn.Parameter(torch.zeros(2))
    assert optimizer.state.get(stranger, {}) == {}
    with pytest.raises(KeyError):
        optimizer.state[stranger]


def test_hooks_come_before_the_first_and_after_the_last_however_they_are_stepped():
    model, optimizers, schedules = made()
    optimizer, _, step = as_one(optimizers, schedules)
    weight, bias = model[1].weight, model[2].bias
    seen = []

    def note(given, *_):
        seen.append((given is optimizer, weight.detach().clone(), bias.detach().clone()))

    hooks = [optimizer.register_step_pre_hook(note), optimizer.register_step_post_hook(note)]
    for make in (step, by_hand(optimizers, schedules)):
        seen.clear()
        train(model, make, 1)
        (mine, w0, b0), (also, w1, b1) = seen
        assert mine and also
        assert not torch.equal(w0, w1)
        assert not torch.equal(b0, b1)
        assert torch.equal(w1, weight)
        assert torch.equal(b1, bias)
    for hook in hooks:
        hook.remove()
    seen.clear()
    train(model, step, 1)
    assert seen == []


def test_what_keeps_a_state_dict_of_its_own_is_refused_and_watch_takes_one():
    class Own(torch.optim.SGD):
        def state_dict(self):
            return {**super().state_dict(), "k": 3}

    model, optimizers, _ = made()
    own = Own(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="Own keeps a state dict of its own"):
        as_one_optimizer([optimizers[0], own])
    with pytest.raises(ConfigError, match="watch observes one optimizer"):
        foreshock.watch(model, optimizers)


def test_what_cannot_be_joined_is_refused():
    _, optimizers, _ = made()
    one = optimizers[0]
    assert as_one_optimizer(one) is one
    assert as_one_optimizer([one]) is one
    assert as_one_scheduler(None) is None
    assert as_one_scheduler(()) is None
    with pytest.raises(ConfigError, match="no optimizer"):
        SeveralOptimizers([])
    with pytest.raises(ConfigError, match="Muon updates a parameter that"):
        as_one_optimizer([optimizers[1], one, one])
    both = SeveralOptimizers(optimizers)
    with pytest.raises(ConfigError, match="closure"):
        both.step(lambda: 0)
    with pytest.raises(ConfigError, match="is to update it"):
        both.add_param_group({"params": []})
