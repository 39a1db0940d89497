"""Before against after: closed forms, how often it is wrong, and that it leaves no trace."""

import math
import random
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from foreshock.core.comparison import PRIOR_NEIGHBOURS, PRIOR_RATIO, TAIL_FREEDOM
from foreshock.core.errors import ConfigError, ProgramError
from foreshock.core.probe import Probe
from foreshock.core.program import Loss
from foreshock.core.student import student_quantile
from foreshock.probes.held_out_loss import HeldOutLoss
from foreshock.verification import compare, measure


def test_the_difference_and_its_tolerance() -> None:
    before = [2.0 + i / 10 for i in range(6)]
    change = [0.01 * (-1) ** i for i in range(6)]
    after = [b + c for b, c in zip(before, change, strict=True)]
    (one,) = compare({"p": before}, {"p": after})
    error = math.sqrt(sum(c * c for c in change) / 5) / math.sqrt(6)
    assert one.difference == pytest.approx(0, abs=1e-12)
    assert one.tolerance == pytest.approx(student_quantile(0.001, 5) * error)
    assert (one.low, one.high) == pytest.approx((-one.tolerance, one.tolerance))
    assert (one.before, one.after) == pytest.approx((2.25, 2.25))
    assert one.passed and one.movement == 0 and one.num_items == 6


def test_the_movement_is_that_of_the_neighbours_weighed_with_the_prior() -> None:
    rng = np.random.default_rng(0)
    states = np.cumsum(rng.normal(0.0, 0.02, size=(4, 40)), axis=0)
    states -= states.mean(axis=1, keepdims=True)  # the items move, their mean does not
    near = [{"p": list(state)} for state in states[:3]]
    (one,) = compare({"p": list(states[3])}, {"p": list(states[3])}, near)
    spread = np.mean(np.diff(states, axis=0).var(axis=1, ddof=1))
    expected = math.sqrt(PRIOR_NEIGHBOURS * PRIOR_RATIO**2 * spread / (PRIOR_NEIGHBOURS + 3))
    quantile = student_quantile(0.0005, TAIL_FREEDOM)
    assert one.movement == pytest.approx(expected * quantile, rel=0.01)
    (far,) = compare({"p": list(states[3])}, {"p": list(states[3])}, near, growth=3.0)
    assert far.movement == pytest.approx(3 * one.movement)


def test_a_change_that_all_items_share_is_held_against_the_movements_alone() -> None:
    near = [{"p": [level, 1 + level]} for level in (0.0, 0.04, 0.01)]
    before = {"p": [0.02, 1.02]}
    deviation = math.sqrt((0.04**2 + 0.03**2 + 0.01**2) / 3)
    (one,) = compare(before, before, near)
    assert one.movement == pytest.approx(deviation * student_quantile(0.0005, 3))
    for share, passed in ((0.99, True), (1.01, False)):
        change = share * one.movement
        assert compare(before, {"p": [0.02 + change, 1.02 + change]}, near)[0].passed is passed


def test_getting_better_is_no_noise() -> None:
    rng = np.random.default_rng(2)
    items = rng.normal(0.0, 0.02, size=(8, 40))
    falling = [{"p": list(2 - 0.5 * step + row)} for step, row in enumerate(items)]
    flat = [{"p": list(2 + row)} for row in items]
    (steep,) = compare(falling[-1], falling[-1], falling[:-1])
    (level,) = compare(flat[-1], flat[-1], flat[:-1])
    assert steep.movement < 2 * level.movement < 0.5


def test_once_one_is_worse_the_others_are_a_smaller_family() -> None:
    rng = np.random.default_rng(3)
    before = {name: list(rng.normal(0, 1, 24)) for name in "abcd"}
    after = {name: list(np.add(row, rng.normal(0, 0.02, 24))) for name, row in before.items()}
    alone = {one.probe: one for one in compare(before, after)}
    hurt = after | {"a": list(np.add(before["a"], 5 + rng.normal(0, 0.02, 24)))}
    found = {one.probe: one for one in compare(before, hurt)}
    assert [name for name, one in found.items() if not one.passed] == ["a"]
    assert all(found[name].tolerance < alone[name].tolerance for name in "bcd")
    just = (alone["b"].tolerance + found["b"].tolerance) / 2
    shifted = np.subtract(after["b"], before["b"]) - alone["b"].difference + just
    both = hurt | {"b": list(np.add(before["b"], shifted))}
    assert [one.probe for one in compare(before, both) if not one.passed] == ["a", "b"]
    only = after | {"b": both["b"]}
    assert all(one.passed for one in compare(before, only))


def test_more_capabilities_and_a_lower_error_widen_the_tolerance() -> None:
    rng = np.random.default_rng(4)
    before = {str(i): list(rng.normal(0, 1, 24)) for i in range(8)}
    after = {name: list(np.add(row, rng.normal(0, 0.02, 24))) for name, row in before.items()}
    one = compare({"0": before["0"]}, {"0": after["0"]})[0].tolerance
    assert one < compare(before, after)[0].tolerance
    assert one < compare({"0": before["0"]}, {"0": after["0"]}, family_error=1e-5)[0].tolerance
    for wrong in ({"family_error": 0.0}, {"growth": 0.0}, {"growth": math.inf}):
        with pytest.raises(ConfigError, match="growth must be above 0"):
            compare(before, after, **wrong)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e308, -1e200])
def test_what_is_not_finite_is_never_whole(bad: float) -> None:
    for before, after in (([1.0, 2.0], [bad, 2.0]), ([bad, 2.0], [1.0, 2.0]), ([bad], [bad])):
        (one,) = compare({"p": before}, {"p": after}, [{"p": [1.0, 9.0]}])
        assert not one.passed
        assert one.to_json()["passed"] is False


def test_a_broken_neighbour_lends_no_tolerance() -> None:
    for bad in (math.nan, math.inf, 1e308, -1e308):
        near = [{"p": [1.0]}, {"p": [bad]}]
        assert compare({"p": [1.0]}, {"p": [1.0]}, near)[0].passed
        assert not compare({"p": [1.0]}, {"p": [1.1]}, near)[0].passed


def test_other_items_are_refused() -> None:
    for after in ({}, {"p": [1.0]}, {"p": []}):
        with pytest.raises(ConfigError, match="probe 'p' has 2 items before"):
            compare({"p": [1.0, 2.0]}, after)


def pair(
    rng: np.random.Generator, items: int, harm: float = 0.0, sd: float = 0.02
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """A healthy model before and after, and three states before it, as probes see them.

    `sd` is that of an item's paired difference.
    """
    items_level = rng.gamma(9.0, 0.3, items)
    item_sd = sd / math.sqrt(2) * rng.lognormal(0.0, 0.3, items)  # harder items move more

    def state(shift: float) -> dict[str, list[float]]:
        return {"p": list(items_level + shift + rng.normal(0, item_sd))}

    near = [state(0.0) for _ in range(3)]
    return state(0.0), state(harm), near


@pytest.mark.parametrize("items", [4, 8, 12, 40])
@pytest.mark.parametrize("neighbours", [True, False])
def test_healthy_pairs_pass(items: int, neighbours: bool) -> None:
    rng = np.random.default_rng([items, neighbours])
    wrong = 0
    for _ in range(100):
        before, after, near = pair(rng, items)
        wrong += not compare(before, after, near if neighbours else [])[0].passed
    assert wrong <= 1


@pytest.mark.parametrize("items", [24, 40])
def test_a_fifth_of_a_nat_is_always_seen(items: int) -> None:
    rng = np.random.default_rng(items)
    for _ in range(60):
        before, after, near = pair(rng, items, harm=0.2)
        (one,) = compare(before, after, near)
        assert not one.passed
        assert one.difference == pytest.approx(0.2, abs=0.06)


@pytest.mark.parametrize("items", [24, 40])
def test_the_detectable_fall_is_found_in_nine_cases_of_ten(items: int) -> None:
    rng = np.random.default_rng([5, items])
    found = 0
    for _ in range(100):
        one, other = pair(rng, items), pair(rng, items)
        fall = compare(one[0], one[1])[0].detectable
        found += not compare(other[0], {"p": [a + fall for a in other[1]["p"]]})[0].passed
    assert 75 <= found <= 99


@dataclass(frozen=True, kw_only=True)
class Rude(Probe):
    """Draws from every global generator, and may raise."""

    name: ClassVar[str] = "rude"
    raises: bool = False

    def measure(self, model: Any) -> list[float]:
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        random.random(), np.random.random(), torch.rand(3)
        value = model(torch.ones(4, 2)).sum()
        assert not value.requires_grad
        if self.raises:
            raise ValueError("rude")
        return [float(value)]


class Stubborn(nn.Module):
    """Keeps one layer in evaluation mode whatever it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
        self.fixed = nn.BatchNorm1d(2)
        self.train()

    def train(self, mode: bool = True) -> "Stubborn":
        super().train(mode)
        self.fixed.training = False
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fixed(self.body(x))


@pytest.mark.parametrize("raises", [False, True])
def test_measuring_leaves_no_trace(raises: bool) -> None:
    model = Stubborn()
    model.body[1].eval()
    model(torch.randn(4, 2)).sum().backward()
    modes = [module.training for module in model.modules()]
    assert len(set(modes)) == 2
    grads = [parameter.grad for parameter in model.parameters()]
    values = [one.clone() for one in grads]
    buffers = [buffer.clone() for buffer in model.buffers()]
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    if raises:
        with pytest.raises(ValueError, match="rude"):
            measure(model, [Rude(raises=True)])
    else:
        assert list(measure(model, [Rude()])) == ["rude"]
    drawn = random.random(), np.random.random(), torch.rand(3)
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    assert drawn[:2] == (random.random(), np.random.random())
    assert torch.equal(drawn[2], torch.rand(3))
    assert [module.training for module in model.modules()] == modes
    for parameter, grad, value in zip(model.parameters(), grads, values, strict=True):
        assert parameter.grad is grad
        assert torch.equal(grad, value)
    assert all(map(torch.equal, model.buffers(), buffers))
    assert torch.is_grad_enabled()


def test_held_out_loss_is_one_value_a_batch_and_says_which_batch_fails() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 2.0)
    batches = [torch.full((3, 1), float(i)) for i in range(4)]

    def loss(model: nn.Module, batch: torch.Tensor) -> Loss:
        return Loss(total=model(batch).mean())

    assert measure(model, [HeldOutLoss(batches=batches, loss=loss)]) == {
        "held_out_loss": [0.0, 2.0, 4.0, 6.0]
    }
    stacked = HeldOutLoss(batches=torch.stack(batches), loss=loss)
    assert measure(model, [stacked])["held_out_loss"] == [0.0, 2.0, 4.0, 6.0]
    with pytest.raises(ProgramError, match=r"held-out batch 0.*raised"):
        HeldOutLoss(batches=batches, loss=lambda model, batch: batch).measure(model)
    with pytest.raises(ProgramError, match="at least one batch"):
        HeldOutLoss(batches=[], loss=loss)
