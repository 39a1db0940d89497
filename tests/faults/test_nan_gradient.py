"""NanGradient: one parameter, one backward pass."""

import numpy as np
import pytest
import torch
from torch import nn

from foreshock.core.errors import ConfigError
from foreshock.faults.nan_gradient import NanGradient


def build() -> tuple[nn.Sequential, torch.optim.SGD]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters())


def spoiled(model: nn.Module) -> list[str]:
    """Paths whose gradient is NaN after one backward pass; the loss must stay finite."""
    model.zero_grad()
    loss = model(torch.ones(5, 3)).square().sum()
    loss.backward()
    assert loss.isfinite()
    gradients = {path: p.grad for path, p in model.named_parameters() if p.grad is not None}
    assert all(g.isnan().all() or g.isfinite().all() for g in gradients.values())
    return [path for path, gradient in gradients.items() if gradient.isnan().all()]


def test_the_named_gradient_is_nan_once() -> None:
    model, optimizer = build()
    said = NanGradient(parameter="1.weight").inject(model, optimizer, np.random.default_rng(0))
    assert "1.weight" in said
    assert spoiled(model) == ["1.weight"]
    assert spoiled(model) == []


def test_two_injections_hit_one_pass_each_when_made_one_by_one() -> None:
    model, optimizer = build()
    for path in ("0.bias", "1.bias"):
        NanGradient(parameter=path).inject(model, optimizer, np.random.default_rng(0))
        assert spoiled(model) == [path]


def test_the_generator_draws_among_trained_parameters() -> None:
    model, optimizer = build()
    model[0].requires_grad_(False)
    drawn: set[str] = set()
    for seed in range(20):
        NanGradient().inject(model, optimizer, np.random.default_rng(seed))
        drawn.update(spoiled(model))
    assert drawn == {"1.weight", "1.bias"}


def test_the_first_of_several_micro_steps_spoils_their_sum() -> None:
    model, optimizer = build()
    NanGradient(parameter="0.weight").inject(model, optimizer, np.random.default_rng(0))
    for _ in range(2):
        model(torch.ones(5, 3)).sum().backward()
    gradient = model.get_parameter("0.weight").grad
    assert gradient is not None
    assert gradient.isnan().all()


def test_an_unknown_parameter_is_named_with_those_allowed() -> None:
    model, optimizer = build()
    with pytest.raises(ConfigError, match=r"'9\.weight'.*0\.weight, 0\.bias, 1\.weight"):
        NanGradient(parameter="9.weight").inject(model, optimizer, np.random.default_rng(0))
