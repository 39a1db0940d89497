"""The fused passes against numpy in fp64: any values, sizes, addresses, number of threads."""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from foreshock.fused import passes
from foreshock.fused.library import library
from foreshock.norms import largest_magnitudes, root_mean_square, sizes

CPU = torch.device("cpu")
PIECE = 16384
SIZES = [1, 2, 15, 17, 1023, 1024, 1025, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 3]
THREADS = (1, 2, 3, 8)
Array = NDArray[np.float64]


@pytest.fixture(autouse=True)
def functions() -> ctypes.CDLL:
    found = library()
    if found.functions is None:
        pytest.skip(found.said)
    return found.functions


def _with(values: torch.Tensor, *bad: float) -> torch.Tensor:
    places = torch.randperm(len(values))[: len(bad)]
    values[places] = torch.tensor(bad)[: len(places)]
    return values


KINDS: dict[str, Callable[[int], torch.Tensor]] = {
    "usual": torch.randn,
    "1e-30": lambda n: torch.randn(n) * 1e-30,
    "1e30": lambda n: torch.randn(n) * 1e30,
    "all magnitudes": lambda n: torch.randn(n).sign() * 10 ** (torch.rand(n) * 82 - 44),
    "denormal": lambda n: torch.randn(n) * 1e-42,
    "zeros of both signs": lambda n: torch.randn(n) * (torch.rand(n) > 0.5),
    "only -0.0": lambda n: torch.full((n,), -0.0),
    "largest": lambda n: torch.full((n,), 3.4e38),
    "Inf": lambda n: _with(torch.randn(n), math.inf),
    "-Inf": lambda n: _with(torch.randn(n), -math.inf),
    "NaN": lambda n: _with(torch.randn(n), math.nan),
    "NaN and Inf": lambda n: _with(torch.randn(n), math.nan, -math.inf),
}


def fp64(values: torch.Tensor) -> Array:
    return values.detach().double().numpy()


def same(found: float, true: float, rel: float) -> bool:
    return found == pytest.approx(true, rel=rel, abs=0, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_entries(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = [KINDS[kind](size).to(dtype) for size in SIZES]
    found = passes.entries(given)
    assert found is not None
    for at, one in enumerate(map(fp64, given)):
        with np.errstate(all="ignore"):
            assert same(found.norms[at], np.sqrt(np.sum(one**2)), 1e-12)
        assert same(found.largest[at], np.abs(one).max(), 0)
        assert found.num_zeros[at] == np.sum(one == 0)
        alone = passes.size_and_peak(given[at])
        assert alone is not None
        assert same(alone[0], found.norms[at] / math.sqrt(len(one)), 1e-15)
        assert same(alone[1], found.largest[at], 0)


def test_entries_of_nothing() -> None:
    found = passes.entries([])
    assert found is not None and all(len(one) == 0 for one in found)
    both = passes.entries([torch.zeros(0, 3), torch.ones(2), torch.zeros(0)])
    assert both is not None
    assert both.norms.tolist() == [0, math.sqrt(2), 0]
    assert both.largest.tolist() == [0, 1, 0] and both.num_zeros.tolist() == [0, 0, 0]
    assert passes.size_and_peak(torch.zeros(0, 3)) is None


def test_nothing_is_lost_in_a_sum_of_many() -> None:
    many = torch.full((3_000_001,), 1e-3)
    many[7] = 1.0
    found = passes.entries([many])
    true = math.sqrt(1 + 3_000_000 * float(torch.tensor(1e-3)) ** 2)
    assert found is not None and same(found.norms[0], true, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_number_of_threads_and_every_address_give_the_same_bits(
    functions: Any, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    kept = torch.randn(20 * PIECE + 77)
    about: set[bytes] = set()
    rows: set[bytes] = set()
    for offset in (0, 1, 3, 5):
        moved = torch.zeros(len(kept) + offset, dtype=dtype)[offset:]
        moved.copy_(kept)
        kind, at = passes._KINDS[dtype], moved.data_ptr()
        for threads in THREADS:
            three = np.full(3, -1.0)
            functions.foreshock_entry(at, len(kept), kind, threads, three.ctypes.data)
            about.add(three.tobytes())
            found = np.full((7, 3), -1.0)
            functions.foreshock_logits(at, kind, 7, 5003, 2001, threads, found.ctypes.data)
            rows.add(found.tobytes())
    assert len(about) == 1 and len(rows) == 1


class Samples:
    """Tensors, places in them as `passes` wants them, and buffers of their samples."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        table, at = [], 0
        for _ in range(9):
            length, count = int(rng.choice([1, 3, 8, 16])), int(rng.integers(1, 60))
            stride, start = length * int(rng.integers(1, 9)), int(rng.integers(0, 40))
            table.append([start, count, length, stride, at])
            at += -(-count * length // 512) * 512
        self.places = np.array(table, dtype=np.int64)
        self.buffer = at
        kinds = list(KINDS.values())
        # Of exactly the size that is needed: one element more would be another's memory.
        own = [start + (count - 1) * stride + length for start, count, length, stride, _ in table]
        self.tensors = [[kinds[int(rng.integers(len(kinds)))](n) for n in own] for _ in range(3)]
        self.tensors[2] = [one.abs() for one in self.tensors[2]]
        self.tensors[1][3] = self.tensors[2][4] = None
        self.before, self.grads = torch.randn(at), torch.randn(at)

    def addresses(self) -> NDArray[np.int64]:
        return np.array(
            [[0 if one is None else one.data_ptr() for one in kind] for kind in self.tensors],
            dtype=np.int64,
        )

    def sample(self, one: torch.Tensor, at: int) -> torch.Tensor:
        start, count, length, stride, _ = self.places[at].tolist()
        return one[[start + i * stride + j for i in range(count) for j in range(length)]]


@pytest.mark.parametrize("seed", range(6))
def test_gather_and_updates(seed: int, functions: Any) -> None:
    given = Samples(seed)
    addresses = given.addresses()
    weights, copied = torch.full((given.buffer,), 9.0), torch.full((given.buffer,), 9.0)
    found = passes.updates(
        addresses, given.places, before=given.before, grads=given.grads, weights=weights, least=1e-8
    )
    assert found is not None and passes.gather(addresses[0], given.places, copied)
    assert torch.equal(weights.view(torch.int32), copied.view(torch.int32))
    written = torch.zeros(given.buffer, dtype=torch.bool)
    least = float(torch.tensor(1e-8))
    for at, (_, count, length, _, begin) in enumerate(given.places.tolist()):
        there = slice(begin, begin + count * length)
        written[there] = True
        now = given.sample(given.tensors[0][at], at)
        assert torch.equal(weights[there].view(torch.int32), now.view(torch.int32))
        first, second = given.tensors[1][at], given.tensors[2][at]
        with np.errstate(all="ignore"):
            moved = fp64(now) - fp64(given.before[there])
            assert same(found.moved[at], np.sum(moved**2), 1e-12)
            assert same(found.size[at], np.sum(fp64(now) ** 2), 1e-12)
            true = 0 if first is None else np.sum(fp64(given.sample(first, at)) ** 2)
            assert same(found.first[at], true, 1e-12)
            if second is None:
                assert found.second[at] == found.stale[at] == 0
                continue
            v = fp64(given.sample(second, at))
            assert same(found.second[at], np.sum(v), 1e-12)
            true = np.sum(fp64(given.grads[there]) ** 2 / np.maximum(v, least))
            assert same(found.stale[at], true, 1e-12)
    assert (weights[~written] == 9).all()
    alike: set[bytes] = set()
    for threads in THREADS:
        out, room = np.full((5, 9), -1.0), torch.full((given.buffer,), 9.0)
        at = addresses.ctypes.data
        assert not functions.foreshock_updates(
            *(at, at + 72, at + 144, given.places.ctypes.data, 9, threads),
            *(given.before.data_ptr(), given.grads.data_ptr(), 1e-8),
            *(room.data_ptr(), out.ctypes.data),
        )
        alike.add(out.tobytes() + room.numpy().tobytes())
    assert len(alike) == 1


def test_gather_of_what_is_not_there_is_zeros() -> None:
    given = Samples(0)
    buffer = torch.full((given.buffer,), 9.0)
    assert passes.gather(np.zeros(9, dtype=np.int64), given.places, buffer)
    assert set(buffer.tolist()) == {0.0, 9.0}
    assert (buffer == 0).sum() == (given.places[:, 1] * given.places[:, 2]).sum()


def true_logits(rows: Array) -> tuple[Array, Array, Array]:
    """Largest, log Z above it, and entropy of each row `[R]`, in fp64."""
    largest = rows.max(axis=1)
    with np.errstate(all="ignore"):
        below = rows - largest[:, None]
        shares = np.exp(below)
        total = shares.sum(axis=1)
        moment = np.where(shares == 0, 0, shares * below).sum(axis=1)
        return largest, np.log(total), np.log(total) - moment / total


def all_but_one(width: int, below: float) -> torch.Tensor:
    row = torch.full((width,), below)
    row[0] = 0
    return row


ROWS: dict[str, Callable[[int], torch.Tensor]] = {
    "usual": lambda n: torch.randn(6, n),
    "peaked": lambda n: torch.randn(6, n) * 30,
    "all equal": lambda n: torch.full((2, n), -7.5),
    # Each addition is rounded the same way: what a long sum in fp32 loses.
    "equal shares": lambda n: torch.stack([all_but_one(n, -0.01 - 14 * i / 63) for i in range(64)]),
    "one hot": lambda n: all_but_one(n, -1e4)[None],
    "masked": lambda n: torch.where(torch.rand(6, n) < 0.5, -math.inf, torch.randn(6, n)),
    "far apart": lambda n: torch.randn(6, n).clamp(-3, 3) * 1e38,
    "large": lambda n: torch.randn(6, n) + 1e6,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 2, 17, 1024, 1025, 5000])
@pytest.mark.parametrize("kind", ROWS)
def test_logits(kind: str, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = ROWS[kind](width).to(dtype)
    given[:, 0].clamp_(min=-100)  # a row that is masked whole is another test's
    found = passes.logits(given, 0, 1)
    assert found is not None
    largest, total, moment = found.T
    true = true_logits(fp64(given))
    assert (largest == true[0]).all()
    spread = np.log(total)
    for mine, its in ((spread, true[1]), (spread - moment / total, true[2])):
        assert (np.abs(mine - its) <= np.maximum(1e-5 * np.abs(its), 2e-6)).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 1023, 1024, 1099])
def test_a_logit_that_is_not_finite_spoils_its_row_only(bad: float, place: int) -> None:
    given = torch.randn(3, 1100)
    given[1, place] = bad
    found = passes.logits(given, 0, 1)
    assert found is not None
    assert np.isfinite(found).tolist() == [[True] * 3, [False] * 3, [True] * 3]
    assert same(found[1, 0], bad, 0)


def test_a_row_of_nothing_but_minus_inf() -> None:
    found = passes.logits(torch.full((1, 40), -math.inf), 0, 1)
    assert found is not None and found[0, 0] == -math.inf and np.isnan(found[0, 1:]).all()


@pytest.mark.parametrize(("first", "every"), [(0, 1), (2, 3), (6, 7), (0, 8), (3, 50)])
def test_every_so_many_rows(first: int, every: int) -> None:
    given = torch.randn(2, 4, 30)
    found, all_rows = passes.logits(given, first, every), passes.logits(given, 0, 1)
    assert found is not None and all_rows is not None
    assert np.array_equal(found, all_rows[first::every])


def test_nothing_that_is_measured_is_written_to() -> None:
    torch.manual_seed(0)
    given = _with(torch.randn(70_000), math.nan, -0.0, 1e-42)
    bits, version = given.view(torch.int32).clone(), given._version
    passes.entries([given]), passes.size_and_peak(given), passes.logits(given.view(7, -1), 0, 1)
    assert torch.equal(given.view(torch.int32), bits) and given._version == version


def test_torch_takes_over_in_there_and_only_there() -> None:
    one = torch.ones(3)
    with passes.unfused(), passes.unfused():
        assert passes.entries([one]) is None and passes.size_and_peak(one) is None
        assert passes.logits(one, 0, 1) is None
    assert passes.entries([one]) is not None
    assert library().said == passes.status()


def test_norms_of_torchs_way_do_not_depend_on_the_default_dtype() -> None:
    one = torch.full((3000,), 300.0)
    torch.set_default_dtype(torch.float16)
    try:
        with passes.unfused():
            slow = sizes([one], CPU).norms.item()
        assert slow == pytest.approx(300 * math.sqrt(3000), rel=1e-6)
        assert root_mean_square(one * 1e3).item() == pytest.approx(3e5)
        assert largest_magnitudes([one * 1e3], CPU).item() == pytest.approx(3e5)
    finally:
        torch.set_default_dtype(torch.float32)
