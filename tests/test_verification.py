"""Before against after: closed forms, how often it is wrong, and that it leaves no trace."""

import math
import random
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from foreshock.core.errors import ConfigError, ProgramError
from foreshock.core.probe import Probe
from foreshock.core.program import Loss
from foreshock.probes.held_out_loss import HeldOutLoss
from foreshock.verification import compare, measure

T_12 = 4.0248  # the 0.1 % quantile of Student's t with 11 degrees of freedom


def test_the_difference_and_its_tolerance() -> None:
    before = [2.0 + i / 10 for i in range(12)]
    change = [0.01 * (-1) ** i for i in range(12)]
    after = [b + c for b, c in zip(before, change, strict=True)]
    (one,) = compare({"p": before}, {"p": after})
    error = math.sqrt(sum(c * c for c in change) / 11) / math.sqrt(12)
    assert one.difference == pytest.approx(0, abs=1e-12)
    assert one.tolerance == pytest.approx(T_12 * error, rel=5e-3)
    assert (one.before, one.after) == pytest.approx((2.55, 2.55))
    assert one.passed


def test_a_uniform_change_beyond_the_healthy_movement_fails() -> None:
    near = [{"p": [1.0, 2.0]}, {"p": [1.04, 2.04]}, {"p": [1.01, 2.01]}]
    before = {"p": [1.02, 2.02]}
    for change, passed in ((-1.0, True), (0.0, True), (0.0399, True), (0.0401, False)):
        (one,) = compare(before, {"p": [1.02 + change, 2.02 + change]}, near)
        assert one.tolerance == pytest.approx(0.04)
        assert one.passed is passed, change


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_never_whole(bad: float) -> None:
    for before, after in (([1.0, 2.0], [bad, 2.0]), ([bad, 2.0], [1.0, 2.0]), ([bad], [bad])):
        (one,) = compare({"p": before}, {"p": after}, [{"p": [1.0, 9.0]}])
        assert not one.passed
        assert one.to_json()["passed"] is False


def test_a_broken_neighbour_lends_no_tolerance() -> None:
    for bad in (math.nan, math.inf):
        near = [{"p": [1.0]}, {"p": [bad]}]
        assert compare({"p": [1.0]}, {"p": [1.0]}, near)[0].passed
        assert not compare({"p": [1.0]}, {"p": [1.1]}, near)[0].passed


def test_other_items_are_refused() -> None:
    for after in ({}, {"p": [1.0]}, {"p": []}):
        with pytest.raises(ConfigError, match="probe 'p' has 2 items before"):
            compare({"p": [1.0, 2.0]}, after)


def test_extreme_levels_are_no_error() -> None:
    assert compare({"p": [1.0, 2.0]}, {"p": [1.0, 2.1]}, z=1e6)[0].passed


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
    for _ in range(300):
        before, after, near = pair(rng, items)
        wrong += not compare(before, after, near if neighbours else [])[0].passed
    assert wrong <= 3


@pytest.mark.parametrize("items", [12, 40])
def test_a_tenth_of_a_nat_is_always_seen(items: int) -> None:
    rng = np.random.default_rng(items)
    for _ in range(300):
        before, after, near = pair(rng, items, harm=0.1)
        (one,) = compare(before, after, near)
        assert not one.passed
        assert one.difference == pytest.approx(0.1, abs=0.06)


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
