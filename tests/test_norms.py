"""Norms, largest magnitudes and root mean squares against fp64, wherever fp32 could go wrong."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from foreshock.norms import l2_norms, largest_magnitudes, root_mean_square
from tests.reference import signals as reference

pytestmark = pytest.mark.usefixtures("way")

CPU = torch.device("cpu")
SIZES = [0, 1, 2, 7, 1023, 1024, 1025, 4095, 4096, 4097, 8193, 70_001]
SCALES = [1e-44, 1e-40, 1e-38, 1e-30, 1e-20, 1e-19, 1e-13, 1e-12, 1e-6, 1.0, 1e6, 1e15, 1e18, 1e19,
          1e25, 1e37]  # fmt: skip


def true(tensor: torch.Tensor) -> float:
    return reference.norm(reference.array(tensor))


def drawn(size: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, generator=generator, dtype=torch.float64) * scale).float()


def check(*tensors: torch.Tensor) -> None:
    """All three against the reference, together and each alone."""
    norms = [true(one) for one in tensors]
    found = l2_norms(tensors, CPU)
    assert found.dtype == torch.float64 and found.shape == (len(tensors),)
    assert found.tolist() == pytest.approx(norms, rel=1e-6, abs=0, nan_ok=True)
    assert l2_norms(tensors[::-1], CPU).tolist() == found.tolist()[::-1] or any(
        map(math.isnan, norms)
    )
    with np.errstate(over="ignore"):
        largest = [
            float(np.float32(np.abs(reference.array(one)).max(initial=0.0))) for one in tensors
        ]
    peaks = largest_magnitudes(tensors, CPU)
    assert peaks.dtype == torch.float32
    assert peaks.tolist() == pytest.approx(largest, rel=0, abs=0, nan_ok=True)
    for one, norm in zip(tensors, norms, strict=True):
        size = reference.array(one).size
        if not size:
            continue
        mean = root_mean_square(one)
        assert mean.dtype == torch.float64 and mean.ndim == 0
        assert mean.item() == pytest.approx(norm / size**0.5, rel=1e-6, abs=0, nan_ok=True)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("size", SIZES)
def test_random_entries_of_any_size_and_scale(size: int, scale: float) -> None:
    check(drawn(size, scale))


@pytest.mark.parametrize("scale", SCALES)
def test_many_scales_side_by_side(scale: float) -> None:
    check(*(drawn(size, scale * 10.0**shift, seed=size) for size in (3, 5000) for shift in (-3, 0)),
          torch.zeros(5000), torch.zeros(0), torch.tensor(2.0))  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_entries_of_every_scale_in_one_tensor(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for size in (5, 4097, 20_000):
        exponents = torch.rand(size, generator=generator, dtype=torch.float64) * 80 - 44
        if seed % 2:
            exponents = exponents.sort().values
        check((10**exponents).clamp(max=3e38).float())


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 100_000])
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-42, 1e-25, 1e-12, 0.1, 1.0, 1e18, 1.8e19, 3e38])
def test_equal_entries(value: float, size: int) -> None:
    check(torch.full((size,), value))


@pytest.mark.parametrize("value", [1e-45, 1e-30, 1e-20, 1e20, 3e38])
@pytest.mark.parametrize("place", [0, 4095, 4096, 8191, 9000])
def test_one_hot_pair(place: int, value: float) -> None:
    hot = torch.zeros(9001)
    hot[place], hot[(place + 5000) % 9001] = value, -value
    check(hot)
    check(hot + drawn(9001, value * 1e-4))


def test_millions_of_equal_entries_keep_six_digits() -> None:
    check(torch.full((3_000_001,), 0.1), torch.full((2000, 2048), 1e-3))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 12_288, 12_300])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_no_bad_entry_can_hide(scale: float, size: int, bad: float) -> None:
    for place in {0, 1 % size, 4095 % size, 4096 % size, size // 2, size - 1}:
        one = drawn(size, scale)
        one[place] = bad
        check(drawn(50), one, drawn(5000))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("size", [3, 4096, 4097, 30_000])
def test_other_precisions(size: int, dtype: torch.dtype) -> None:
    for scale in (1e-7, 1.0, 60.0):
        check(drawn(size, scale).to(dtype), drawn(size))
    spoiled = drawn(size).to(dtype)
    spoiled[-1] = math.inf
    check(spoiled, drawn(7).to(dtype))


def test_the_edges_of_half_precision() -> None:
    check(torch.full((5000,), 65504.0).half(), torch.full((5000,), 6e-8).half())
    check(torch.full((5000,), 3e38).bfloat16(), torch.full((5000,), 1e-40).bfloat16())


@pytest.mark.parametrize("scale", [1e-150, 1e-60, 1e60, 1e150])
def test_what_only_fp64_holds(scale: float) -> None:
    one = torch.randn(5000, generator=torch.Generator().manual_seed(0)).double() * scale
    assert l2_norms([one], CPU).item() == pytest.approx(true(one), rel=1e-9, abs=0)
    assert root_mean_square(one).item() == pytest.approx(true(one) / 5000**0.5, rel=1e-9, abs=0)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_complex_numbers_are_pairs_of_real_ones(scale: float) -> None:
    one = torch.complex(drawn(5000, scale), drawn(5000, scale, seed=1))
    check(one, one.conj(), one.reshape(50, 100).T, one.to(torch.complex128))
    assert l2_norms([one], CPU).item() == pytest.approx(
        float(np.sqrt((np.abs(one.numpy().astype(np.complex128)) ** 2).sum())), rel=1e-6
    )


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda one: one.view(90, 100).T,
    "every other": lambda one: one[::2],
    "columns": lambda one: one.view(90, 100)[:, 3:70],
    "expanded": lambda one: one[:100].expand(60, 100),
    "channels last": lambda one: one.view(9, 10, 10, 10).to(memory_format=torch.channels_last),
    "offset": lambda one: one[7:],
    "0-dim": lambda one: one[3],
    "wide rows": lambda one: one[:8192].view(2, 4096),
    "wide rows of odd length": lambda one: one[:8991].view(3, 2997),
    "rows of one": lambda one: one.view(9000, 1),
    "one row": lambda one: one.view(1, 9000),
    "three dimensions": lambda one: one.view(9, 250, 4),
    "an empty dimension": lambda one: one.view(9, 1000)[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_layouts(scale: float, layout: str) -> None:
    one = LAYOUTS[layout](drawn(9000, scale))
    check(one, drawn(5))
    if one.numel() > 1:
        spoiled = one.clone()
        spoiled[(-1,) * one.ndim] = math.nan
        check(spoiled)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_sparse_tensors_as_dense_ones(scale: float) -> None:
    indices = torch.tensor([[0, 3, 3, 700]])  # one row twice: its values add up
    values = drawn(4 * 12, scale).view(4, 12)
    sparse = torch.sparse_coo_tensor(indices, values, (900, 12))
    dense = sparse.to_dense()
    found = l2_norms([sparse, dense], CPU)
    assert found.tolist() == pytest.approx([true(dense)] * 2, rel=1e-6, abs=0)
    peaks = largest_magnitudes([sparse, dense], CPU)
    assert peaks[0] == peaks[1] == dense.abs().max()
    nothing = torch.sparse_coo_tensor(
        torch.zeros(1, 0, dtype=torch.long), torch.zeros(0, 3), (9, 3)
    )
    assert l2_norms([nothing], CPU).tolist() == [0.0]
    assert largest_magnitudes([nothing], CPU).tolist() == [0.0]


def test_an_overflow_of_the_sum_is_no_bad_entry() -> None:
    found = l2_norms([torch.full((4_000_000,), 3e38)], CPU)
    assert found.item() == pytest.approx(3e38 * 2000, rel=1e-6)


def test_no_tensors_at_all() -> None:
    assert l2_norms([], CPU).shape == (0,)


def test_nothing_is_written_and_no_graph_is_kept() -> None:
    one = torch.nn.Parameter(drawn(5000))
    before = one.detach().clone()
    for found in (l2_norms([one], CPU), largest_magnitudes([one], CPU), root_mean_square(one)):
        assert not found.requires_grad
    assert torch.equal(one, before) and one._version == 0
