"""OptimizerMoments: what is damaged, what is left alone, and what the next update does."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from foreshock.core.errors import ConfigError
from foreshock.faults.optimizer_moments import OptimizerMoments


def trained(**options: Any) -> tuple[nn.Sequential, torch.optim.AdamW]:
    """A model in double precision, and its optimizer after four steps of random gradients."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.Linear(3, 2)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, **options)
    for _ in range(4):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator).double()
        optimizer.step()
    return model, optimizer


def factors(before: dict[str, Any], optimizer: torch.optim.Optimizer, key: str) -> list[float]:
    """By how much each parameter's `key` has changed; one factor for the whole tensor."""
    after = optimizer.state_dict()["state"]
    found: list[float] = []
    for index, state in before["state"].items():
        ratio = after[index][key] / state[key]
        assert ratio.max() - ratio.min() < 1e-6
        found.append(ratio.mean().item())
    return found


def inject(fault: OptimizerMoments, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    return fault.inject(model, optimizer, np.random.default_rng(0))


@pytest.mark.parametrize(("intensity", "factor"), [(0.0, 1.0), (0.5, 1e-3), (1.0, 1e-6)])
def test_scaled_multiplies_every_second_moment_and_nothing_else(
    intensity: float, factor: float
) -> None:
    model, optimizer = trained()
    before, weights = deepcopy(optimizer.state_dict()), deepcopy(model.state_dict())
    said = inject(OptimizerMoments(mode="scaled", intensity=intensity), model, optimizer)
    assert factors(before, optimizer, "exp_avg_sq") == pytest.approx([factor] * 5, rel=1e-4)
    assert factors(before, optimizer, "exp_avg") == factors(before, optimizer, "step") == [1.0] * 5
    assert all(torch.equal(weights[path], model.state_dict()[path]) for path in weights)
    assert f"by {factor:.3g}" in said


@pytest.mark.parametrize(("intensity", "num_zeroed"), [(0.0, 0), (0.1, 1), (0.4, 2), (1.0, 5)])
def test_zeroed_hits_that_share_of_the_parameters(intensity: float, num_zeroed: int) -> None:
    model, optimizer = trained()
    before = deepcopy(optimizer.state_dict())
    said = inject(OptimizerMoments(mode="zeroed", intensity=intensity), model, optimizer)
    expected = [0.0] * num_zeroed + [1.0] * (5 - num_zeroed)
    assert sorted(factors(before, optimizer, "exp_avg_sq")) == expected
    assert f"{num_zeroed} of 5" in said


def test_embedding_hits_the_embedding_alone() -> None:
    model, optimizer = trained()
    before = deepcopy(optimizer.state_dict())
    inject(OptimizerMoments(mode="embedding", intensity=0.5), model, optimizer)
    assert factors(before, optimizer, "exp_avg_sq") == pytest.approx([1e-3, 1, 1, 1, 1], rel=1e-4)


def test_amsgrad_maxima_are_second_moments_too() -> None:
    model, optimizer = trained(amsgrad=True)
    before = deepcopy(optimizer.state_dict())
    inject(OptimizerMoments(mode="scaled", intensity=0.5), model, optimizer)
    assert factors(before, optimizer, "max_exp_avg_sq") == pytest.approx([1e-3] * 5, rel=1e-4)


def test_the_next_update_grows_as_the_formula_says() -> None:
    """With a zero gradient, an AdamW update is proportional to m / sqrt(v): times 1/sqrt(1e-3)."""

    def update(fault: OptimizerMoments | None) -> torch.Tensor:
        model, optimizer = trained()
        if fault is not None:
            inject(fault, model, optimizer)
        weight = model.get_parameter("1.weight").detach()  # [3, 4], shared with the model
        before = weight.clone()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        return weight - before

    growth = update(OptimizerMoments(mode="scaled", intensity=0.5)) / update(None)
    torch.testing.assert_close(growth, torch.full_like(growth, 1e3**0.5), rtol=1e-3, atol=0)


@pytest.mark.parametrize("mode", ["scaled", "zeroed", "embedding"])
def test_an_optimizer_without_second_moments_is_refused(mode: Any) -> None:
    model, _ = trained()
    for optimizer in (torch.optim.SGD(model.parameters()), torch.optim.Adam(model.parameters())):
        with pytest.raises(ConfigError, match=f"in this {type(optimizer).__name__}"):
            inject(OptimizerMoments(mode=mode), model, optimizer)


def test_a_model_without_embedding_is_refused_in_embedding_mode() -> None:
    model, optimizer = trained()
    inject(OptimizerMoments(mode="scaled"), model[1], optimizer)
    with pytest.raises(ConfigError, match=r"of an nn\.Embedding"):
        inject(OptimizerMoments(mode="embedding"), model[1], optimizer)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"mode": "doubled"}, "'doubled'; allowed: scaled"), ({"intensity": -1.0}, "intensity is -1")],
)
def test_a_setting_that_is_not_allowed_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        OptimizerMoments(**settings)
