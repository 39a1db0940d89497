"""Which layer is looked at, and the root mean square of what enters it."""

import math

import pytest
import torch
from torch import nn

from foreshock.core.signal import Attached, Clock, Moment, Site
from foreshock.signals.activation_norm import ActivationNormSignal
from tests.signals.recording import values_of

NOTHING = Moment(loss=None, grad_norms=None, grad_norm=None, lr=0.0)


def attach(
    model: nn.Module, *, interval_steps: int = 1, clock: Clock | None = None
) -> Attached | None:
    site = Site(
        model=model,
        optimizer=None,
        parameters=tuple(model.named_parameters()),
        clock=clock or Clock(),
    )
    return ActivationNormSignal(interval_steps=interval_steps).attach(site)


def seen(attached: Attached | None) -> list[float]:
    assert attached is not None
    return list(values_of(attached, NOTHING).values())


def test_the_last_norm_outside_the_blocks_is_taken() -> None:
    model = nn.ModuleDict(
        {
            "ln_f": nn.LayerNorm(4),
            "blocks": nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4))]),
        }
    )
    attached = attach(model)
    assert attached is not None and attached.series == ("activation_norm/ln_f",)
    assert len(model["ln_f"]._forward_pre_hooks) == 1
    attached.detach()
    assert not model["ln_f"]._forward_pre_hooks
    del model["ln_f"]
    attached = attach(model)
    assert attached is not None and attached.series == ("activation_norm/blocks.0.1",)
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
    assert seen(attached) == pytest.approx([expected], rel=1e-5, abs=0)
    assert seen(attached) == []


def test_an_infinite_activation_shows_and_does_not_stay() -> None:
    model = nn.LayerNorm(2)
    attached = attach(model)
    model(torch.tensor([[1.0, torch.inf]]))
    assert seen(attached) == [math.inf]
    model(torch.ones(1, 2))
    assert seen(attached) == pytest.approx([1.0])


def test_half_a_step_that_was_undone_is_forgotten() -> None:
    model = nn.LayerNorm(2)
    attached = attach(model)
    model(torch.full((1, 2), 9.0))
    attached.load_state_dict(attached.state_dict())
    model(torch.ones(1, 2))
    assert seen(attached) == pytest.approx([1.0])


def test_forwards_of_a_step_that_is_not_due_are_not_looked_at() -> None:
    model, clock = nn.LayerNorm(2), Clock()
    attached = attach(model, interval_steps=3, clock=clock)
    found = []
    for clock.step in range(1, 7):
        model(torch.full((1, 2), float(clock.step)))
        if clock.is_due(3):
            found += seen(attached)
    assert found == pytest.approx([3.0, 6.0])


def test_micro_steps_dropped_leave_nothing_behind() -> None:
    model = nn.LayerNorm(2)
    attached = attach(model)
    assert attached is not None
    model(torch.full((1, 2), 9.0))
    attached.forget()
    assert seen(attached) == []
