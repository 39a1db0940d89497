"""Which layer is looked at, and the root mean square of what enters it."""

import pytest
import torch
from torch import nn

from foreshock.core.signal import Moment, Site
from foreshock.signals.activation_norm import ActivationNormSignal, last_norm_layer

NOTHING = Moment(loss=None, grad_norms=None, grad_norm=None, lr=0.0)


def attach(model: nn.Module) -> object:
    site = Site(model=model, optimizer=None, parameters=tuple(model.named_parameters()))
    return ActivationNormSignal().attach(site)


def test_the_last_norm_outside_the_blocks_is_taken() -> None:
    model = nn.ModuleDict(
        {
            "ln_f": nn.LayerNorm(4),
            "blocks": nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4))]),
        }
    )
    assert last_norm_layer(model) == ("ln_f", model["ln_f"])
    del model["ln_f"]
    assert last_norm_layer(model) == ("blocks.0.1", model["blocks"][0][1])
    assert attach(nn.Linear(2, 2)) is None


def test_weight_norm_is_no_norm_layer() -> None:
    assert attach(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))) is None


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_mean_of_squares_over_micro_steps(scale: float) -> None:
    model = nn.LayerNorm(4)
    attached = attach(model)
    first, second = torch.randn(3, 4) * scale, torch.randn(3, 4) * scale
    model(first)
    model(input=second)
    model.eval()
    model(first * 100)
    model.train()
    with torch.no_grad():
        model(first * 100)
    expected = torch.cat([first, second]).double().square().mean().sqrt().item()
    assert attached.measure(NOTHING).tolist() == pytest.approx([expected], rel=1e-5, abs=0)


def test_an_infinite_activation_shows_and_does_not_stay() -> None:
    model = nn.LayerNorm(2)
    attached = attach(model)
    model(torch.tensor([[1.0, torch.inf]]))
    assert attached.measure(NOTHING).isinf().all()
    model(torch.ones(1, 2))
    assert attached.measure(NOTHING).item() == pytest.approx(1.0)


def test_half_a_step_that_was_undone_is_forgotten() -> None:
    model = nn.LayerNorm(2)
    attached = attach(model)
    model(torch.full((1, 2), 9.0))
    attached.load_state_dict(attached.state_dict())
    model(torch.ones(1, 2))
    assert attached.measure(NOTHING).item() == pytest.approx(1.0)
