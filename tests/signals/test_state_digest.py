"""Digests of the state: the same for the same bits, another for any other."""

import numpy as np
import pytest
import torch

from foreshock.attachment import site_of
from foreshock.core.signal import Moment
from foreshock.signals.state_digest import StateDigestSignal
from foreshock.update import trained_parameters

NOTHING = Moment(loss=None, grad_norms=None, grad_norm=None, lr=0.0)


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 7), torch.nn.Linear(7, 7))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        model(torch.randn(3, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    attached = StateDigestSignal().attach(
        site_of(model, optimizer, trained_parameters(model, optimizer))
    )
    with torch.no_grad():
        partials = attached.measure(NOTHING)
    # What the one buffer carries is float32.
    weights, moments = attached.finish(partials.float().double().numpy(), True)
    assert np.float32(weights) == weights and np.float32(moments) == moments
    return weights, moments


def test_the_same_bits_give_the_same_numbers() -> None:
    assert digest(*trained()) == digest(*trained())
    assert min(digest(*trained())) > 0


@pytest.mark.parametrize("bit", [0, 7, 23, 31])
def test_any_bit_of_a_weight_changes_that_of_the_weights_only(bit: int) -> None:
    model, optimizer = trained()
    before = digest(model, optimizer)
    words = model[1].weight.data.view(torch.int32).view(-1)
    words[11] ^= 1 << bit if bit < 31 else -(1 << 31)
    after = digest(model, optimizer)
    assert after[0] != before[0] and after[1] == before[1]


def test_a_moment_changes_that_of_the_moments_only() -> None:
    model, optimizer = trained()
    before = digest(model, optimizer)
    optimizer.state[model[2].bias]["exp_avg_sq"][3] *= 1.0000002
    after = digest(model, optimizer)
    assert after[0] == before[0] and after[1] != before[1]


def test_two_layers_that_swap_their_weights_are_another_state() -> None:
    model, optimizer = trained()
    before = digest(model, optimizer)
    first, second = model[1].weight.data.clone(), model[2].weight.data.clone()
    model[1].weight.data.copy_(second)
    model[2].weight.data.copy_(first)
    assert digest(model, optimizer)[0] != before[0]


def test_two_moments_that_swap_places_are_another_state() -> None:
    model, optimizer = trained()
    before = digest(model, optimizer)
    state = optimizer.state[model[1].weight]
    state["exp_avg"], state["exp_avg_sq"] = state["exp_avg_sq"], state["exp_avg"]
    assert digest(model, optimizer)[1] != before[1]
