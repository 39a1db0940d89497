"""Parameter norm against fp64."""

import math

import pytest
import torch

from foreshock.core.signal import Moment, Site
from foreshock.signals.param_norm import ParamNormSignal

NOTHING = Moment(loss=None, grad_norms=None, grad_norm=None, lr=0.0)


def norm_of(*tensors: torch.Tensor) -> float:
    parameters = tuple((f"w{i}", torch.nn.Parameter(one)) for i, one in enumerate(tensors))
    site = Site(model=None, optimizer=None, parameters=parameters)
    attached = ParamNormSignal().attach(site)
    return attached.measure(NOTHING).item()


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_against_fp64(scale: float) -> None:
    tensors = [torch.randn(70_000) * scale, torch.randn(3, 4).bfloat16() * scale, torch.zeros(0)]
    expected = math.sqrt(sum(one.double().square().sum().item() for one in tensors))
    assert norm_of(*tensors) == pytest.approx(expected, rel=1e-5, abs=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_weight_shows(bad: float) -> None:
    assert not math.isfinite(norm_of(torch.tensor([1.0, bad]), torch.ones(3)))
