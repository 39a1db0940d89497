"""The update ratio against the whole, and its sample within the stated error."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from foreshock.core.errors import ConfigError
from foreshock.core.signal import Moment, Site
from foreshock.signals.update_ratio import UpdateRatioSignal
from tests.signals.recording import values_of

NOTHING = Moment(loss=None, grad_norms=None, grad_norm=None, lr=0.0)


def ratios(
    weights: list[torch.Tensor], updates: list[torch.Tensor], *, committed: bool = True
) -> dict[str, float]:
    parameters = [torch.nn.Parameter(one.clone()) for one in weights]
    named = tuple((f"layers.{i}.weight", one) for i, one in enumerate(parameters))
    site = Site(model=None, optimizer=None, parameters=named)
    attached = UpdateRatioSignal().attach(site)
    with torch.no_grad():
        attached.prepare(NOTHING)
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.add_(update)
        return values_of(attached, NOTHING, committed=committed)


def exact(weights: list[torch.Tensor], updates: list[torch.Tensor]) -> float:
    after = [(w + u).double() for w, u in zip(weights, updates, strict=True)]
    moved = sum((a - w.double()).square().sum() for a, w in zip(after, weights, strict=True))
    return float((moved / sum(a.square().sum() for a in after)).sqrt())


def drawn(scale: float, seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * scale for shape in shapes]


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-25])
def test_small_tensors_are_measured_in_full(scale: float) -> None:
    shapes = ((64, 64), (7,), (), (0,))
    weights, updates = drawn(scale, 0, *shapes), drawn(1e-3 * scale, 1, *shapes)
    found = ratios(weights, updates)
    assert found["update_ratio/global"] == pytest.approx(exact(weights, updates), rel=1e-5)
    for i in range(3):
        expected = exact(weights[i : i + 1], updates[i : i + 1])
        assert found[f"update_ratio/layers.{i}"] == pytest.approx(expected, rel=1e-5)
    assert found["update_ratio/layers.3"] == 0


def errors(seeds: int, *shapes: tuple[int, ...]) -> np.ndarray:
    found = []
    for seed in range(seeds):
        weights, updates = drawn(0.05, seed, *shapes), drawn(1e-4, 1000 + seed, *shapes)
        found.append(ratios(weights, updates)["update_ratio/global"] / exact(weights, updates) - 1)
    return np.array(found)


def test_the_sample_of_one_tensor_errs_as_little_as_it_says() -> None:
    found = errors(100, (256, 384))
    assert 0.012 < found.std() < 0.019
    assert abs(found.mean()) < 0.006


def test_the_sample_of_a_model_errs_as_little_as_it_says() -> None:
    found = abs(errors(12, *[(128, 260), (130, 128)] * 6))
    assert 0 < np.median(found) < 0.005
    assert found.max() < 0.018


def test_a_skipped_update_is_zero_and_a_bad_weight_shows() -> None:
    weights = drawn(1.0, 0, (8, 8), (3,))
    still = [torch.zeros_like(one) for one in weights]
    assert set(ratios(weights, still).values()) == {0.0}
    broken = [torch.full((8, 8), torch.nan), torch.zeros(3)]
    found = ratios(weights, broken)
    assert math.isnan(found["update_ratio/global"])
    assert found["update_ratio/layers.1"] == 0
    infinite = [torch.full((8, 8), torch.inf), torch.zeros(3)]
    assert not math.isfinite(ratios(weights, infinite)["update_ratio/global"])


def test_weights_that_were_zero() -> None:
    found = ratios([torch.zeros(4)], [torch.ones(4)])
    assert found["update_ratio/layers.0"] == pytest.approx(1.0)
    assert ratios([torch.zeros(4)], [torch.zeros(4)])["update_ratio/layers.0"] == 0


def test_an_interval_of_no_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="interval_steps"):
        UpdateRatioSignal(interval_steps=0)


def test_what_rounding_lost() -> None:
    weights = [torch.ones(64).bfloat16(), torch.ones(8)]
    updates = [torch.full((64,), 1e-4).bfloat16(), torch.full((8,), 1e-9)]
    updates[0][:16] = 0.5
    parameters = [torch.nn.Parameter(one.clone()) for one in weights]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    parameters[0].grad[40:] = 0
    named = tuple((f"layers.{i}.weight", one) for i, one in enumerate(parameters))
    attached = UpdateRatioSignal().attach(Site(model=None, optimizer=None, parameters=named))
    found = []
    for committed in (True, False):
        moment = dataclasses.replace(NOTHING)
        with torch.no_grad():
            attached.prepare(moment)
            for parameter, update in zip(parameters, updates, strict=True):
                parameter.add_(update * committed)
            found.append(values_of(attached, moment, committed=committed))
    assert found[0]["lost_update_share/global"] == pytest.approx(24 / 40)
    assert "lost_update_share/global" not in found[1]
    assert found[1]["update_ratio/global"] == 0


def test_what_rounding_lost_is_a_share_of_all_weights_not_of_the_sampled_ones() -> None:
    """A matrix of 250,000 gives no more samples than one of 4,096, and weighs 61 times as much."""
    parameters = [
        torch.nn.Parameter(torch.ones(shape).bfloat16()) for shape in ((500, 500), (4096,))
    ]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    named = tuple((f"layers.{i}.weight", one) for i, one in enumerate(parameters))
    attached = UpdateRatioSignal().attach(Site(model=None, optimizer=None, parameters=named))
    with torch.no_grad():
        attached.prepare(NOTHING)
        parameters[0].add_(1.0)
        found = values_of(attached, NOTHING)
    assert found["lost_update_share/global"] == pytest.approx(4096 / 254_096, rel=1e-6)
