"""Which ranks hold the same data, and which of them holds something else."""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from foreshock.core.errors import ConfigError
from foreshock.ranks.exchange import Group, exchange, gather, global_ranks
from foreshock.ranks.placement import local_part

Named = Sequence[tuple[str, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """Which ranks hold the same data; the same on every rank but for `own`.

    Attributes:
        names: `[P]` paths of the tensors of all ranks (with pipeline stages, none has all).
        ranks: `[W]` global ranks of the group.
        sets: for each path the sets of global ranks that hold the same part of it, each of two
            or more. A shard without a twin is in none, and so is an empty one.
        own: places in `names` of the tensors of this rank.
    """

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    sets: tuple[tuple[tuple[int, ...], ...], ...]
    own: tuple[int, ...]

    @property
    def unwatched(self) -> tuple[str, ...]:
        """Paths without any replica; they need another watch (see `shards`)."""
        return tuple(name for name, sets in zip(self.names, self.sets, strict=True) if not sets)

    def gather(self, digests: torch.Tensor, group: Group) -> torch.Tensor:
        """Every rank's digests `[W, P, 2]` from this one's `[P_own, 2]`; one collective.

        Zero where a rank does not hold the path.
        """
        table = torch.zeros(len(self.names), 2, dtype=torch.int64, device=digests.device)
        table[list(self.own)] = digests
        return gather(table, group)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Replicas of one tensor that are not the same.

    Attributes:
        name: path of the tensor.
        classes: the ranks by what they hold, the largest class first.
        odd: the ranks outside the majority; all of them where there is none.
    """

    name: str
    classes: tuple[tuple[int, ...], ...]

    @property
    def odd(self) -> tuple[int, ...]:
        rest = self.classes[1:] if self.has_majority else self.classes
        return tuple(sorted(rank for ranks in rest for rank in ranks))

    @property
    def has_majority(self) -> bool:
        """Whether more than half of the replicas agree."""
        return 2 * len(self.classes[0]) > sum(map(len, self.classes))

    def __str__(self) -> str:
        total = sum(map(len, self.classes))
        if self.has_majority:
            verb = "differs" if len(self.odd) == 1 else "differ"
            rest = len(self.classes[0])
            return f"{self.name}: {_ranks(self.odd)} {verb} from the other {rest} replicas"
        if total == 2:
            return (
                f"{self.name}: {_ranks(self.odd)} differ; two replicas cannot tell which is right"
            )
        parts = " against ".join(_ranks(ranks) for ranks in self.classes)
        return f"{self.name}: {parts}, no majority among {total} replicas"


def find_replicas(
    named: Named, device: torch.device, group: Group = None, *, own: Collection[str] = ()
) -> Replicas:
    """Find out which ranks hold the same data; collective, once, at set-up.

    Two ranks hold the same data if they give the same path with the same part (offset and
    shape) of a tensor of the same shape. That covers data-parallel copies (plain tensors),
    the replicated dimensions of HSDP and of tensor parallelism, and pipeline stages.

    Args:
        named: (path, tensor) of this rank.
        device: where the group's backend wants its tensors.
        group: the ranks to compare; None is all of them.
        own: paths whose plain tensors are different on each rank (local experts, say).

    Raises:
        ConfigError: a path is given twice.
    """
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{doubled!r} was given twice; every tensor needs a path of its own")
    told = [(name, "" if name in own else _identity(tensor)) for name, tensor in named]
    everyone = exchange(told, device, group)
    columns: dict[str, dict[str, list[int]]] = {}
    for rank, rows in zip(global_ranks(group), everyone, strict=True):
        for name, identity in rows:
            holders = columns.setdefault(name, {})
            if identity:
                holders.setdefault(identity, []).append(rank)
    places = {name: place for place, name in enumerate(columns)}
    return Replicas(
        names=tuple(columns),
        ranks=global_ranks(group),
        sets=tuple(
            tuple(tuple(ranks) for ranks in holders.values() if len(ranks) > 1)
            for holders in columns.values()
        ),
        own=tuple(places[name] for name in names),
    )


def compare(table: torch.Tensor, replicas: Replicas) -> list[Mismatch]:
    """Name what differs among replicas; waits for the host.

    Args:
        table: `[W, P, 2]` digests of every rank, see `Replicas.gather`.
        replicas: which ranks hold the same data.
    """
    rows = table.tolist()
    place = {rank: index for index, rank in enumerate(replicas.ranks)}
    found: list[Mismatch] = []
    for column, (name, sets) in enumerate(zip(replicas.names, replicas.sets, strict=True)):
        for ranks in sets:
            classes: dict[tuple[int, ...], list[int]] = {}
            for rank in ranks:
                classes.setdefault(tuple(rows[place[rank]][column]), []).append(rank)
            if len(classes) > 1:
                ordered = sorted(map(tuple, classes.values()), key=lambda one: (-len(one), one))
                found.append(Mismatch(name=name, classes=tuple(ordered)))
    return found


def _identity(tensor: torch.Tensor) -> str:
    part = local_part(tensor)
    if part.partial or not part.tensor.numel():
        return ""
    facts = [part.shape, part.offset, tuple(part.tensor.shape), str(part.tensor.dtype)]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
