"""Flat groups of weights as the Guard sees them, over an optimizer that is sharded by hand."""

import pytest
import torch

from foreshock.core.errors import SnapshotError
from foreshock.core.override import AS_BUILT
from foreshock.flat_groups import FlatGroups
from foreshock.optimizer_settings import overridden
from foreshock.snapshots.finite import has_finite_state
from foreshock.snapshots.parts import ModulePart, OptimizerPart, clone_tree

pytestmark = pytest.mark.usefixtures("group_of_one")


class Halves:
    """bf16 weights, and fp32 ones flat in two groups, with settings of their own."""

    def __init__(self, module):
        self.members = [list(module[0].parameters()), list(module[2].parameters())]
        self.flat = [torch.cat([p.detach().float().flatten() for p in m]) for m in self.members]
        self.setting_of = [1, 0]
        groups = [{"params": [self.flat[1]], "lr": 0.1}, {"params": [self.flat[0]]}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)
        self.taken, self.num_discarded = [], 0

    def gradient(self, place):
        return torch.cat([p.grad.flatten() for p in self.members[place]])

    def step(self, gradients):
        self.taken = [one.clone() for one in gradients]
        for flat, gradient in zip(self.flat, gradients, strict=True):
            flat.grad = gradient
        self.optimizer.step()
        self.follow()

    def discard(self):
        self.num_discarded += 1

    @torch.no_grad()
    def follow(self):
        for flat, members in zip(self.flat, self.members, strict=True):
            for one, part in zip(members, flat.split([m.numel() for m in members]), strict=True):
                one.copy_(part.view_as(one))


def made():
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4, affine=False), torch.nn.Linear(4, 2)
    )
    module.extra = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    module = module.bfloat16()
    groups = Halves(module)
    return module, groups, FlatGroups(module, groups)


def gathered(module, parts):
    parts.begin_micro_step()
    module.zero_grad()
    module(torch.randn(5, 3).bfloat16()).float().square().sum().backward()
    parts.take_gradients()


def trained(steps=2):
    module, groups, parts = made()
    for _ in range(steps):
        gathered(module, parts)
        parts.optimizer.step()
        parts.optimizer.zero_grad()
    return module, groups, parts


def test_an_update_is_made_from_the_gradients_as_the_guard_has_left_them():
    module, groups, parts = made()
    gathered(module, parts)
    assert not parts.took_step
    for one in parts.model.groups:
        one.grad.to_local().mul_(0.5)
    parts.optimizer.step()
    assert parts.took_step
    for place, one in enumerate(groups.taken):
        assert torch.equal(one, groups.gradient(place).float() * 0.5)
    parts.optimizer.zero_grad()
    assert groups.num_discarded == 0
    assert all(one.grad is None for one in parts.model.groups)


def test_a_step_that_is_not_made_is_discarded():
    module, groups, parts = trained()
    gathered(module, parts)
    parts.optimizer.zero_grad()
    assert groups.num_discarded == 1


def test_everything_comes_back_exactly_and_the_weights_follow():
    module, groups, parts = trained()
    model, optimizer = ModulePart(parts.model), OptimizerPart(parts.optimizer)
    saved = clone_tree([model.capture(), optimizer.capture()])
    moments = [state["exp_avg"] for state in groups.optimizer.state.values()]
    before = {name: one.clone() for name, one in module.state_dict().items()}
    for _ in range(2):
        gathered(module, parts)
        parts.optimizer.step()
    groups.optimizer.param_groups[0]["lr"] = 7.0
    with torch.no_grad():
        module.extra.zero_()
    model.restore(saved[0])
    optimizer.restore(saved[1])
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
    now = [model.capture(), optimizer.capture()]
    for mine, other in zip(_leaves(now), _leaves(saved), strict=True):
        assert torch.equal(mine, other) if isinstance(mine, torch.Tensor) else mine == other
    held = [state["exp_avg"] for state in groups.optimizer.state.values()]
    assert all(map(lambda one, two: one is two, held, moments))  # in the memory they had


def test_a_state_from_before_the_first_update_has_none():
    module, groups, parts = made()
    saved = clone_tree(parts.optimizer.state_dict())
    gathered(module, parts)
    parts.optimizer.step()
    assert len(groups.optimizer.state) == 2
    OptimizerPart(parts.optimizer).restore(saved)
    assert len(groups.optimizer.state) == len(parts.optimizer.state) == 0


def test_a_state_goes_into_an_optimizer_that_has_made_no_update():
    _, groups, parts = trained()
    saved = clone_tree(parts.optimizer.state_dict())
    _, fresh, other = made()
    OptimizerPart(other.optimizer).restore(saved)
    for mine, two in zip(groups.flat, fresh.flat, strict=True):
        for name, value in groups.optimizer.state[mine].items():
            assert torch.equal(fresh.optimizer.state[two][name], value)


def test_settings_and_moments_are_those_of_the_optimizer():
    _, groups, parts = trained()
    first, second = parts.optimizer.param_groups
    assert [one["lr"] for one in (first, second)] == [0.1, 0.01]
    assert first["params"] == [parts.model.groups[1]]
    with overridden(parts.optimizer, 0.5, AS_BUILT):
        assert groups.optimizer.param_groups[0]["lr"] == 0.05
    assert groups.optimizer.param_groups[0]["lr"] == 0.1
    assert has_finite_state(parts.optimizer)
    state = parts.optimizer.state[parts.model.groups[0]]
    assert state["exp_avg"] is state["exp_avg"]
    state["exp_avg"].to_local().fill_(torch.nan)
    assert not has_finite_state(parts.optimizer)
    assert torch.isnan(groups.optimizer.state[groups.flat[0]]["exp_avg"]).all()


def test_other_groups_are_refused():
    _, _, parts = made()
    state = parts.model.state_dict()
    del state["groups.1"]
    with pytest.raises(SnapshotError, match="other groups"):
        parts.model.load_state_dict(state)


def _leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree, key=str) for leaf in _leaves(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for one in tree for leaf in _leaves(one)]
    return [tree.to_local() if hasattr(tree, "to_local") else tree]
