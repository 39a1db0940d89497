"""Parameter norm against fp64."""

import math

import pytest
import torch

from foreshock.core.signal import Attached, Moment, Site
from foreshock.signals.param_norm import ParamNormSignal
from tests.signals.recording import values_of

NOTHING = Moment(loss=None, grad_norms=None, grad_norm=None, lr=0.0)


def norm_of(*tensors: torch.Tensor) -> float:
    parameters = tuple((f"w{i}", torch.nn.Parameter(one)) for i, one in enumerate(tensors))
    site = Site(model=None, optimizer=None, parameters=parameters)
    attached = ParamNormSignal().attach(site)
    return values_of(attached, NOTHING)["param_norm/global"]


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_against_fp64(scale: float) -> None:
    tensors = [torch.randn(70_000) * scale, torch.randn(3, 4).bfloat16() * scale, torch.zeros(0)]
    expected = math.sqrt(sum(one.double().square().sum().item() for one in tensors))
    assert norm_of(*tensors) == pytest.approx(expected, rel=1e-5, abs=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_weight_shows(bad: float) -> None:
    assert not math.isfinite(norm_of(torch.tensor([1.0, bad]), torch.ones(3)))


def test_growth_is_against_the_first_measurement_and_is_rewound() -> None:
    parameters = [torch.nn.Parameter(torch.full((3,), one)) for one in (2.0, 0.0)]
    named = tuple((f"layers.{i}.weight", one) for i, one in enumerate(parameters))
    site = Site(model=None, optimizer=None, parameters=named)
    attached = ParamNormSignal().attach(site)
    growth = ["param_growth/layers.0", "param_growth/layers.1"]

    def grown(one: Attached) -> list[float]:
        found = values_of(one, NOTHING)
        return [found[name] for name in growth]

    assert grown(attached) == [1.0, 1.0]
    with torch.no_grad():
        parameters[0].mul_(3)
        parameters[1].add_(1)
    assert grown(attached) == pytest.approx([3.0, 1.0])
    resumed = ParamNormSignal().attach(site)
    resumed.load_state_dict(attached.state_dict())
    assert grown(resumed) == pytest.approx([3.0, 1.0])
    resumed.load_state_dict(ParamNormSignal().attach(site).state_dict())
    assert grown(resumed) == [1.0, 1.0]
    with pytest.raises(ValueError, match="groups"):
        resumed.load_state_dict({"first": [1.0]})
