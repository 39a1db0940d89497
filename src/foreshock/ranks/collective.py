"""All of a step's partial values reduced over the ranks in one collective.

One buffer of fp64, one all-reduce that sums. What sums cannot do rides in it too: a column of
maxima, minima or per-rank values has a slot for each rank, every rank fills its own and leaves
the others zero, so that the sum is the table of all ranks. Works on every backend that sums.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from foreshock.core.errors import ConfigError
from foreshock.ranks.exchange import Group, num_ranks, own_index


class Kind(StrEnum):
    """How a value of a step is put together from those of the ranks.

    NORM is the root of the sum of squares. MEAN is over the ranks, each counted once. SAME is
    the same everywhere already: the first rank's is taken. PER_RANK stays apart.
    """

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"
    NORM = "norm"
    SAME = "same"
    PER_RANK = "per_rank"


_SLOTTED = (Kind.MAX, Kind.MIN, Kind.PER_RANK)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far the ranks lie apart, for chosen columns.

    Attributes:
        lowest: `[M]` smallest value of any rank; NaN if one is.
        highest: `[M]` largest value; NaN if one is.
        rank_of_highest: `[M]` int64 place in the group of the largest value, or of the first
            NaN.
    """

    lowest: torch.Tensor
    highest: torch.Tensor
    rank_of_highest: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """The values of a step over all ranks, on the device.

    Attributes:
        values: `[K]` fp64, the same on every rank; of a PER_RANK column this rank's own.
        table: `[W, M]` fp64, what each rank gave for each slotted column.
        columns: `[M]` which columns those are: MAX, MIN and PER_RANK, in order.
    """

    values: torch.Tensor
    table: torch.Tensor
    columns: tuple[int, ...]

    def spread(self, columns: Sequence[int]) -> Spread:
        """The spread over ranks of slotted columns.

        Raises:
            ConfigError: a column was summed, so that the ranks' values are gone.
        """
        for column in columns:
            if column not in self.columns:
                raise ConfigError(
                    f"the spread of column {column} was asked, which is summed over ranks; only "
                    f"MAX, MIN and PER_RANK columns keep what each gave: {list(self.columns)}"
                )
        slots = [self.table[:, self.columns.index(column)] for column in columns]
        chosen = torch.stack(slots, 1) if slots else self.table[:, :0]
        return Spread(
            lowest=chosen.amin(0),
            highest=chosen.amax(0),
            rank_of_highest=chosen.argmax(0),
        )


@dataclass(kw_only=True)
class Pending:
    """A reduction on its way.

    Attributes:
        kinds: kinds of the columns.
        buffer: what is being summed; not to be touched.
        own: `[K]` fp64, this rank's values.
        num_ranks: ranks of the group.
        work: handle of the collective; None where there is none.
    """

    kinds: tuple[Kind, ...]
    buffer: torch.Tensor
    own: torch.Tensor
    num_ranks: int
    work: Any = field(default=None, repr=False)

    def finish(self) -> Reduced:
        """The reduced values. On an accelerator only its stream waits, on a CPU the caller."""
        slotted = _slotted(self.kinds)
        places = _places(self.kinds, self.own.device)
        if self.work is None:
            table = self.own.index_select(0, places.slotted)[None]
            return Reduced(values=self.own, table=table, columns=slotted)
        self.work.wait()
        direct, table = self.buffer[: len(self.kinds)], self.buffer[len(self.kinds) :]
        table = table.view(self.num_ranks, len(slotted))
        values = direct.clone()
        values[places.norm] = direct.index_select(0, places.norm).sqrt()
        values[places.mean] = direct.index_select(0, places.mean) / self.num_ranks
        values[places.per_rank] = self.own.index_select(0, places.per_rank)
        values[places.max] = table.index_select(1, places.max_slots).amax(0)
        values[places.min] = table.index_select(1, places.min_slots).amin(0)
        return Reduced(values=values, table=table, columns=slotted)


def reduce_partials(values: torch.Tensor, kinds: Sequence[str], group: Group = None) -> Reduced:
    """Reduce a step's values over the ranks; `start_reduction` and `finish` in one."""
    return start_reduction(values, kinds, group).finish()


def start_reduction(values: torch.Tensor, kinds: Sequence[str], group: Group = None) -> Pending:
    """Send a step's values on their way over the ranks; nothing waits.

    One all-reduce of `K + W * M` fp64 numbers, M the number of MAX, MIN and PER_RANK columns.
    NaN and Inf stay in their own column, as IEEE 754 has it (Inf and -Inf sum to NaN; a NaN is
    the maximum and the minimum). Squares of NORM columns overflow beyond 1e154. With one rank
    there is no collective, and the values are given back bit for bit.

    Args:
        values: `[K]` this rank's values, on the device that the backend wants. What several
            ranks hold is scaled by the caller: a SUM by the weight of its part, a NORM by the
            root of it (see `local_part`).
        kinds: `[K]` names of `Kind`; the same on every rank, and in the same order.
        group: the ranks; None is all of them.

    Raises:
        ConfigError: a kind is unknown, or there is not one for each value.
    """
    known = tuple(_kind(kind) for kind in kinds)
    if values.ndim != 1 or len(known) != len(values):
        raise ConfigError(
            f"{len(known)} kinds were given for values of shape {tuple(values.shape)}; one each "
            "is needed, for a one-dimensional tensor"
        )
    own = values.detach().to(torch.float64)
    world = num_ranks(group)
    if world == 1:
        return Pending(kinds=known, buffer=own, own=own.clone(), num_ranks=1)
    own = own.clone()
    places = _places(known, own.device)
    buffer = own.new_zeros(len(known) + world * len(places.slotted))
    direct = buffer[: len(known)]
    table = buffer[len(known) :].view(world, len(places.slotted))
    direct[places.added] = own.index_select(0, places.added)
    direct[places.norm] = own.index_select(0, places.norm).square()
    if own_index(group) == 0:
        direct[places.same] = own.index_select(0, places.same)
    torch.index_select(own, 0, places.slotted, out=table[own_index(group)])
    work = dist.all_reduce(buffer, group=group, async_op=True)
    return Pending(kinds=known, buffer=buffer, own=own, num_ranks=world, work=work)


def buffer_bytes(kinds: Sequence[str], num_ranks: int) -> int:
    """Bytes that one step sends, for a statement of cost.

    >>> buffer_bytes(["norm", "max"], num_ranks=8)
    80
    """
    known = tuple(_kind(kind) for kind in kinds)
    return 0 if num_ranks == 1 else 8 * (len(known) + num_ranks * len(_slotted(known)))


def root_weight(weight: float) -> float:
    """What a NORM partial is scaled by where `1 / weight` ranks hold it.

    >>> root_weight(0.25)
    0.5
    """
    return math.sqrt(weight)


def _slotted(kinds: tuple[Kind, ...]) -> tuple[int, ...]:
    return tuple(column for column, kind in enumerate(kinds) if kind in _SLOTTED)


class _Places(NamedTuple):
    """Columns by kind, as indices on the device: a list would be copied there, and waited for."""

    added: torch.Tensor
    same: torch.Tensor
    mean: torch.Tensor
    norm: torch.Tensor
    per_rank: torch.Tensor
    max: torch.Tensor
    min: torch.Tensor
    slotted: torch.Tensor
    max_slots: torch.Tensor
    min_slots: torch.Tensor


@functools.lru_cache(maxsize=64)
def _places(kinds: tuple[Kind, ...], device: torch.device) -> _Places:
    slotted = _slotted(kinds)

    def of(*wanted: Kind) -> torch.Tensor:
        return index(column for column, kind in enumerate(kinds) if kind in wanted)

    def slots(wanted: Kind) -> torch.Tensor:
        return index(slot for slot, column in enumerate(slotted) if kinds[column] is wanted)

    def index(columns: Iterable[int]) -> torch.Tensor:
        with torch.inference_mode(False):
            return torch.tensor(list(columns), dtype=torch.int64, device=device)

    return _Places(
        added=of(Kind.SUM, Kind.MEAN),
        same=of(Kind.SAME),
        mean=of(Kind.MEAN),
        norm=of(Kind.NORM),
        per_rank=of(Kind.PER_RANK),
        max=of(Kind.MAX),
        min=of(Kind.MIN),
        slotted=of(*_SLOTTED),
        max_slots=slots(Kind.MAX),
        min_slots=slots(Kind.MIN),
    )


def _kind(kind: str) -> Kind:
    try:
        return Kind(kind)
    except ValueError as error:
        raise ConfigError(f"{kind!r} is no kind of column; allowed: {[*Kind]}") from error
