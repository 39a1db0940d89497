"""Digests: against slow integers, any flipped bit, any split, any layout."""

import itertools
import math
import random
import struct

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from foreshock.core.errors import ConfigError
from foreshock.ranks.collective import reduce_partials
from foreshock.ranks.digest import _CPU_CHUNK, digests, halves, whole
from foreshock.ranks.placement import LocalPart, local_part, num_copies
from tests.ranks.processes import CPU, on_ranks

MASK = (1 << 64) - 1


def of(tensor: torch.Tensor) -> list[int]:
    return digests([tensor], CPU)[0].tolist()


def weight(axis: int, index: int) -> int:
    return mixed(axis, index % 4096) * mixed(axis + 128, index // 4096)


def mixed(axis: int, index: int) -> int:
    """splitmix64 in Python's own integers."""
    z = (index + (axis << 40) + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return (z ^ z >> 31) | 1


def reference(words: list[int], shape: tuple[int, ...]) -> list[int]:
    """The formula of the module's docstring, word by word."""
    sums = [0, 0]
    for word, index in zip(words, itertools.product(*map(range, shape)), strict=True):
        rest = word * math.prod(weight(axis, i) for axis, i in enumerate(index) if axis)
        sums[0] += rest * weight(0, index[0])
        sums[1] += rest * weight(64, index[0])
    return [(one & MASK) - (1 << 64) * (one >> 63 & 1) for one in sums]


@pytest.mark.parametrize(
    "shape", [(7,), (5, 3), (2, 3, 4), (3, 1, 2, 5), (2, 300), (3, 2, 130), (9001,), (2, 4200)]
)
def test_it_is_the_formula(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape)
    packed = struct.pack(f"<{values.numel()}f", *values.flatten().tolist())
    words = list(struct.unpack(f"<{values.numel()}i", packed))
    assert of(values) == reference(words, shape)


def test_numbers_of_64_bits_are_two_words() -> None:
    values = torch.randn(3, 5, dtype=torch.float64)
    words = list(struct.unpack("<30i", struct.pack("<15d", *values.flatten().tolist())))
    assert of(values) == reference(words, (3, 5, 2))
    assert of(values.view(torch.int64)) == of(values)


def test_short_chunks_and_long_rows_change_nothing() -> None:
    """Longer than a chunk in one row, and in many."""
    row = torch.randint(-(2**31), 2**31 - 1, (1, _CPU_CHUNK + 77), dtype=torch.int32)
    parts = [
        LocalPart(row[:, a:b], (0, a), row.shape, 1.0, False)
        for a, b in [(0, 1000), (1000, _CPU_CHUNK), (_CPU_CHUNK, row.shape[1])]
    ]
    assert digests(parts, CPU).sum(0).tolist() == of(row)
    long = row[0]
    cuts = [0, 5, 4097, 70000, len(long)]
    parts = [
        LocalPart(long[a:b], (a,), long.shape, 1.0, False) for a, b in itertools.pairwise(cuts)
    ]
    assert digests(parts, CPU).sum(0).tolist() == of(long)
    tall = row[:, :131000].reshape(-1, 500)
    parts = [LocalPart(one, (i, 0), tall.shape, 1.0, False) for i, one in enumerate(tall.split(1))]
    assert digests(parts, CPU).sum(0).tolist() == of(tall)


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
    torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128,
    torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_single_flipped_bit_changes_it(dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, (3, 4)).to(dtype)
    before = of(tensor)
    data = tensor.view(torch.uint8).reshape(-1)
    for place in range(len(data)):
        for bit in range(1 if dtype is torch.bool else 8):
            data[place] ^= 1 << bit
            assert of(tensor)[0] != before[0]
            data[place] ^= 1 << bit
    assert of(tensor) == before


@pytest.mark.parametrize("bits", [(31, 31), (31, 30), (0, 0), (15, 31), (23, 23)])
def test_two_flips_do_not_cancel(bits: tuple[int, int]) -> None:
    """Signs above all: a wrapping 32-bit sum loses every even number of them."""
    tensor = torch.randn(64, 64)
    data = tensor.view(torch.int32).reshape(-1)
    before, chooser = of(tensor), random.Random(1)
    for _ in range(300):
        places = chooser.sample(range(4096), 2)
        for place, bit in zip(places, bits, strict=True):
            data[place] ^= -(2**31) if bit == 31 else 1 << bit
        assert of(tensor)[0] != before[0]
        for place, bit in zip(places, bits, strict=True):
            data[place] ^= -(2**31) if bit == 31 else 1 << bit


def test_flips_at_the_corners_of_a_rectangle_do_not_cancel() -> None:
    """The blind spot of sums of rows and of columns."""
    tensor = torch.zeros(8, 8, dtype=torch.int32)
    tensor[2, 3] = tensor[5, 6] = 1
    tensor[2, 6] = tensor[5, 3] = -1
    assert of(tensor) != of(torch.zeros(8, 8, dtype=torch.int32))


def test_elements_that_change_places_are_seen() -> None:
    tensor = torch.randn(40, 30)
    before = of(tensor)
    for a, b in [((0, 0), (0, 1)), ((0, 0), (1, 0)), ((3, 4), (4, 3)), ((39, 29), (0, 0))]:
        swapped = tensor.clone()
        swapped[a], swapped[b] = tensor[b], tensor[a]
        assert of(swapped) != before
    assert of(tensor.t().contiguous()) != before
    assert of(tensor.roll(1, 0)) != before


def test_layout_in_memory_does_not_count() -> None:
    tensor = torch.randn(6, 10)
    assert of(tensor.t().contiguous().t()) == of(tensor)
    wide = torch.randn(6, 20)
    assert of(wide[:, ::2]) == of(wide[:, ::2].contiguous())
    doubles = torch.randn(6, 20, dtype=torch.float64)
    assert of(doubles[:, ::2]) == of(doubles[:, ::2].contiguous())
    complexes = torch.randn(4, 5, dtype=torch.complex64)
    assert of(complexes.conj()) == of(complexes.conj().resolve_conj().clone())
    assert of(torch.ones(1).expand(5)) == of(torch.ones(5))


def test_empty_and_zero_dimensional() -> None:
    assert of(torch.zeros(0, 4)) == of(torch.zeros(3, 0)) == [0, 0]
    assert of(torch.tensor(1.5)) == of(torch.tensor([1.5])) != [0, 0]
    assert of(torch.tensor(1.5, dtype=torch.float64))[0] != 0
    assert digests([], CPU).shape == (0, 2)


def test_bits_count_and_not_values() -> None:
    assert of(torch.tensor([0.0])) != of(torch.tensor([-0.0]))
    quiet = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert of(quiet[:1]) != of(quiet[1:])


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(3).to_sparse(), torch.empty(3, device="meta"),
     LocalPart(torch.ones(2), (0,), (2,), 1.0, True)],
    ids=["sparse", "meta", "partial"],
)  # fmt: skip
def test_what_has_no_digest_is_refused(tensor: torch.Tensor | LocalPart) -> None:
    with pytest.raises(ConfigError, match="a digest was asked of"):
        digests([tensor], CPU)


def test_any_blocks_add_up() -> None:
    whole_one = torch.randn(9, 6, 5, dtype=torch.float64)
    chooser = random.Random(3)
    for _ in range(20):
        cuts = [sorted({0, size, *chooser.sample(range(size + 1), 2)}) for size in whole_one.shape]
        parts = [
            LocalPart(whole_one[a:b, c:d, e:f], (a, c, e), whole_one.shape, 1.0, False)
            for (a, b), (c, d), (e, f) in itertools.product(*map(itertools.pairwise, cuts))
        ]
        chooser.shuffle(parts)
        assert digests(parts, CPU).sum(0).tolist() == of(whole_one)


def test_halves_travel_as_floats_and_add_up() -> None:
    rows = torch.randint(-(2**63), 2**63 - 1, (50, 2))
    assert torch.equal(whole(halves(rows)), rows)
    assert torch.equal(whole(halves(rows).sum(0)), rows.sum(0))


def sharded(rank: int, world: int) -> None:
    """Digests of the shards of one DTensor add up to that of the whole."""
    torch.manual_seed(0)
    flat = init_device_mesh("cpu", (world,))
    cases = [(flat, [Shard(0)]), (flat, [Shard(1)]), (flat, [Replicate()])]
    if world == 4:
        square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        both = [Replicate(), Shard(0), Shard(1)]
        cases += [(square, [one, other]) for one in both for other in both]
    for shape in [(8, 4), (5, 3), (3, 7), (1, 2), (2, 1), (0, 3)]:
        full = torch.randn(shape)
        for mesh, placements in cases:
            spread = distribute_tensor(full, mesh, placements)
            part = local_part(spread, world)
            copies = num_copies(spread, world)
            assert part.weight == 1 / copies and not part.partial
            where = tuple(
                slice(start, start + size)
                for start, size in zip(part.offset, part.tensor.shape, strict=True)
            )
            assert torch.equal(full[where], part.tensor), (shape, placements)
            own = halves(digests([part], CPU))[0]
            total = reduce_partials(own, ["sum"] * 4).values / copies
            assert whole(total).tolist() == of(full), (shape, placements)
            squares = torch.stack([part.tensor.double().norm() * math.sqrt(part.weight)])
            norm = reduce_partials(squares, ["norm"]).values[0]
            assert torch.isclose(norm, full.double().norm(), rtol=1e-12)
    summands = DTensor.from_local(torch.ones(3), flat, [Partial()])
    assert local_part(summands, world).partial
    assert num_copies(summands, world) == 1


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_digests_and_norms_of_shards_add_up(world: int) -> None:
    on_ranks(sharded, world)


def over_tensor_parallelism(rank: int, world: int) -> None:
    """FSDP2 over tensor parallelism: strided shards of one dimension."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Linear(12, 4))
    full = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    for name, parameter in net.named_parameters():
        part = local_part(parameter, world)
        own = halves(digests([part], CPU))[0] * part.weight
        assert whole(reduce_partials(own, ["sum"] * 4).values).tolist() == of(full[name]), name


@pytest.mark.slow
def test_digests_of_strided_shards_add_up() -> None:
    on_ranks(over_tensor_parallelism, 4)
