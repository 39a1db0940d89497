"""All kinds of columns in one all-reduce, against plain arithmetic over the ranks' values."""

import math

import pytest
import torch
import torch.distributed as dist

from foreshock.core.errors import ConfigError
from foreshock.ranks.collective import Kind, buffer_bytes, reduce_partials, start_reduction
from tests.ranks.processes import on_ranks

KINDS = [*Kind, *Kind]


def values_of(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(len(KINDS), generator=generator, dtype=torch.float64) * 10.0**rank


def special(rank: int) -> list[float]:
    """One rank's column: Inf here, -Inf there, NaN elsewhere, and finite numbers beside."""
    return [
        math.inf if rank == 0 else -math.inf if rank == 1 else 1.0,
        math.nan if rank == 1 else 2.0,
        3.0,
        -math.inf if rank == 0 else 4.0,
    ]


def reduced(rank: int, world: int) -> list[float]:
    calls = []
    original = dist.all_reduce

    def counted(*args: object, **kwargs: object) -> object:
        calls.append(args)
        return original(*args, **kwargs)

    dist.all_reduce = counted
    everyone = torch.stack([values_of(one) for one in range(world)])
    mine = values_of(rank)
    pending = start_reduction(mine, KINDS)
    mine.zero_()  # what was given may be overwritten at once
    found = pending.finish()
    assert len(calls) == 1 and calls[0][0].nbytes == buffer_bytes(KINDS, world)
    for column, kind in enumerate(KINDS):
        given = everyone[:, column]
        expected = {
            Kind.SUM: given.sum(),
            Kind.MAX: given.max(),
            Kind.MIN: given.min(),
            Kind.MEAN: given.mean(),
            Kind.NORM: given.norm(),
            Kind.SAME: given[0],
            Kind.PER_RANK: given[rank],
        }[kind]
        torch.testing.assert_close(found.values[column], expected, rtol=1e-14, atol=0)
    slotted = [column for column, kind in enumerate(KINDS) if kind in ("max", "min", "per_rank")]
    assert list(found.columns) == slotted
    assert torch.equal(found.table, everyone[:, slotted])
    spread = found.spread(slotted[1:3])
    assert torch.equal(spread.lowest, everyone[:, slotted[1:3]].amin(0))
    assert torch.equal(spread.highest, everyone[:, slotted[1:3]].amax(0))
    assert torch.equal(spread.rank_of_highest, everyone[:, slotted[1:3]].argmax(0))
    with pytest.raises(ConfigError, match="column 0 was asked"):
        found.spread([0])

    for kind in Kind:
        column = reduce_partials(torch.tensor(special(rank)), [kind] * 4)
        at = torch.tensor([special(one) for one in range(world)], dtype=torch.float64)
        expected = {
            Kind.SUM: at.sum(0), Kind.MEAN: at.mean(0), Kind.MAX: at.amax(0), Kind.MIN: at.amin(0),
            Kind.NORM: at.square().sum(0).sqrt(), Kind.SAME: at[0], Kind.PER_RANK: at[rank],
        }[kind]  # fmt: skip
        torch.testing.assert_close(column.values, expected, rtol=1e-14, atol=0, equal_nan=True)
        assert math.isfinite(column.values[2])
        if kind is Kind.MAX:
            names = column.spread([0, 1]).rank_of_highest.tolist()
            assert names == [0, 1]  # the infinite one, and the one with a NaN
    assert reduce_partials(torch.zeros(0), []).values.shape == (0,)
    shared = [one for one, kind in enumerate(KINDS) if kind is not Kind.PER_RANK]
    return found.values[shared].tolist()


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_one_collective_does_all_kinds(world: int) -> None:
    results = on_ranks(reduced, world)
    assert results == [results[0]] * world  # bit for bit the same on every rank


def test_one_rank_gets_its_values_back_bit_for_bit() -> None:
    values = torch.tensor([0.1, -0.0, math.nan, math.inf, 1e-310, 1e300, 3.0], dtype=torch.float64)
    found = reduce_partials(values, [*Kind])
    assert torch.equal(found.values.view(torch.int64), values.view(torch.int64))
    assert found.table.shape == (1, 3)
    assert found.spread([1]).rank_of_highest.tolist() == [0]


def test_wrong_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="'average' is no kind"):
        reduce_partials(torch.zeros(1), ["average"])
    with pytest.raises(ConfigError, match="2 kinds were given for values of shape"):
        reduce_partials(torch.zeros(1), ["sum", "sum"])
