"""Samples of sharded tensors: of rows, those of the whole; of other layouts, as good."""

import math
from collections.abc import Iterator

import pytest
import torch
import torch.distributed
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.test_sampling import moment, parts, sampling_of

pytestmark = pytest.mark.usefixtures("way")

WORLD = 4


def shards(whole: torch.Tensor, placements: list[object]) -> Iterator[torch.Tensor]:
    """The tensor as each rank of a fake group of 4 holds it."""
    for rank in range(WORLD):
        torch.distributed.init_process_group("fake", rank=rank, world_size=WORLD, store=FakeStore())
        try:
            sizes = (WORLD,) if len(placements) == 1 else (2, 2)
            mesh = torch.distributed.device_mesh.init_device_mesh("cpu", sizes)
            shape, offset = compute_local_shape_and_global_offset(whole.shape, mesh, placements)
            own = whole[tuple(slice(o, o + s) for o, s in zip(offset, shape, strict=True))]
            yield DTensor.from_local(
                own.contiguous(), mesh, placements, run_check=False,
                shape=whole.shape, stride=whole.stride(),
            )  # fmt: skip
        finally:
            torch.distributed.destroy_process_group()
            # What one process remembers of its mesh is not that of the next rank.
            torch._C._clear_DTensor_sharding_propagator_cache()


def placed(*dims: int | None) -> list[object]:
    return [Replicate() if dim is None else Shard(dim) for dim in dims]


@pytest.mark.parametrize(
    "shape", [(512, 96), (515, 33), (5, 4000), (3, 4000), (5000,), (100, 40), (1, 9), (700, 7, 3)]
)
@pytest.mark.parametrize("dims", [(0,), (0, 0)])
def test_samples_of_shards_of_rows_add_up_to_that_of_the_whole(
    shape: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    whole = torch.randn(shape)
    alone = sampling_of(nn.Parameter(whole))
    values = alone.weights_before(moment())
    expected = parts(alone, values)[0]
    found, squares, totals, counts, largest = [], 0.0, 0.0, 0.0, 0.0
    for shard in shards(whole, placed(*dims)):
        sampling = sampling_of(shard)
        own = sampling.weights_before(moment())
        found += parts(sampling, own)
        squares += sampling.norms(own).square().item()
        totals += sampling.totals(own).item()
        counts += (sampling.num_sampled * sampling.scale).item()
        largest = max(largest, sampling.largest(own).item())
    assert torch.equal(torch.cat(found), expected)
    assert math.sqrt(squares) == pytest.approx(alone.norms(values).item(), rel=1e-6)
    assert totals == pytest.approx(alone.totals(values).item(), rel=1e-5, abs=1e-3)
    assert counts == pytest.approx(whole.numel())
    assert largest == alone.largest(values).item()


@pytest.mark.parametrize("dims", [(1,), (0, 1), (1, 1)])
def test_samples_of_other_shards_stand_for_the_whole_too(dims: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    whole = torch.randn(640, 144)
    squares = counts = 0.0
    for shard in shards(whole, placed(*dims)):
        sampling = sampling_of(shard)
        squares += sampling.norms(sampling.weights_before(moment())).square().item()
        counts += (sampling.num_sampled * sampling.scale).item()
    assert counts == pytest.approx(whole.numel())
    assert math.sqrt(squares) == pytest.approx(whole.norm().item(), rel=0.03)


def test_replicas_take_the_sample_of_the_whole() -> None:
    whole = torch.randn(640, 144)
    alone = sampling_of(nn.Parameter(whole))
    expected = alone.weights_before(moment())
    for shard in shards(whole, placed(None)):
        assert torch.equal(sampling_of(shard).weights_before(moment()), expected)
