"""Gradient norms against fp64, wherever fp32 squares leave their range."""

import math
from typing import Any

import pytest
import torch

from foreshock.core.signal import Site
from foreshock.signals.gradients import GradientSignal
from tests.signals.recording import values_of
from tests.signals.sites import moment_of


def norms_of(gradients: list[torch.Tensor], clip: float | None = None) -> dict[str, float]:
    parameters = [(f"layers.{i // 2}.attn.w{i}", torch.zeros(1)) for i in range(len(gradients))]
    site = Site(model=None, optimizer=None, clip=clip, parameters=tuple(parameters))
    attached = GradientSignal().attach(site)
    return values_of(attached, moment_of(gradients))


def reference(gradients: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(one.double().square().sum()) for one in gradients))


def random_gradients(scale: float, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(300, 700), (5,), (), (64, 3), (0, 3)]
    return [torch.randn(shape, generator=generator) * scale for shape in shapes]


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e30, 1e-30, 1e-20, 1e19, 1e-13])
def test_global_and_group_norms_are_right_at_any_scale(scale: float) -> None:
    gradients = random_gradients(scale)
    found = norms_of(gradients)
    assert found["grad_norm/global"] == pytest.approx(reference(gradients), rel=1e-5, abs=0)
    for group in range(3):
        expected = reference(gradients[2 * group : 2 * group + 2])
        assert found[f"grad_norm/layers.{group}.attn"] == pytest.approx(expected, rel=1e-5, abs=0)
    squares = sum(found[f"grad_norm/layers.{group}.attn"] ** 2 for group in range(3))
    assert math.sqrt(squares) == pytest.approx(found["grad_norm/global"], rel=1e-6, abs=0)
    assert found["num_nonfinite_grads/global"] == 0


def test_the_small_beside_the_huge_is_not_lost() -> None:
    found = norms_of([torch.full((4,), 1e30), torch.ones(1), torch.full((4,), 1e-30)])
    assert found["grad_norm/layers.1.attn"] == pytest.approx(2e-30, rel=1e-6, abs=0)


def test_millions_of_equal_entries_keep_five_digits() -> None:
    gradient = torch.full((3_000_001,), 0.1)
    expected = reference([gradient])
    assert norms_of([gradient])["grad_norm/global"] == pytest.approx(expected, rel=1e-5, abs=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 32_767, 32_768, 209_999])
def test_no_bad_entry_can_hide(bad: float, place: int) -> None:
    gradients = random_gradients(1.0)
    gradients[0].view(-1)[place] = bad
    found = norms_of(gradients)
    assert found["num_nonfinite_grads/global"] == 1
    assert not math.isfinite(found["grad_norm/global"])
    assert not math.isfinite(found["grad_norm/layers.0.attn"])
    expected = reference(gradients[2:4])
    assert found["grad_norm/layers.1.attn"] == pytest.approx(expected, rel=1e-5, abs=0)


def test_finite_gradients_whose_norm_no_float_holds_are_not_called_nonfinite() -> None:
    found = norms_of([torch.full((4,), 3e38), torch.ones(2)])
    assert found["num_nonfinite_grads/global"] == 0
    assert found["grad_norm/global"] == math.inf


@pytest.mark.parametrize(
    ("clip", "share"), [(None, 0.0), (2.5, 0.5), (5.0, 0.0), (7.0, 0.0), (0.05, 0.99)]
)
def test_clip_share_is_what_clipping_took(clip: Any, share: float) -> None:
    found = norms_of([torch.tensor([3.0]), torch.tensor([4.0])], clip)
    assert found["clip_share/global"] == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    gradients = [one.to(dtype) for one in random_gradients(1.0)]
    found = norms_of(gradients)["grad_norm/global"]
    assert found == pytest.approx(reference(gradients), rel=1e-5, abs=0)
