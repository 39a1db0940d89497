"""Shards under the Guard: what ranks hold together of a state, and how they agree on it."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import torch

from foreshock.accord import Accord, Replicas, State, fate_of_all
from foreshock.core.errors import ConfigError
from foreshock.durable import Disk
from foreshock.ranks.agreement import Ranks
from foreshock.ranks.placement import is_distributed
from foreshock.shared_store import EveryRankStore, FirstRankStore
from foreshock.snapshots.checksum import checksum
from foreshock.snapshots.codec import digest
from foreshock.snapshots.damage import blake2b
from foreshock.snapshots.disk import DiskStore
from foreshock.snapshots.stores import Store


class Sharing(NamedTuple):
    """How the ranks of a run hold its state.

    Attributes:
        store: where durable snapshots are; None for one rank, which has its own.
        accord: what ranks make of the state together.
    """

    store: Store | None
    accord: Accord


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether parameters or buffers of a model are spread over ranks (FSDP2, DTensor).

    Raises:
        ConfigError: it is sharded by FSDP1, whose parts nothing can be told of.
    """
    for path, module in model.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
            raise ConfigError(
                f"{path or 'the model'} is sharded by FullyShardedDataParallel (FSDP1), whose "
                "flat parameters the Guard cannot take apart; use torch.distributed.fsdp."
                "fully_shard (FSDP2)"
            )
    return any(is_distributed(one) for one in (*model.parameters(), *model.buffers()))


def sharing_of(model: torch.nn.Module, disk: Disk, folder: Path, ranks: Ranks) -> Sharing:
    """Choose by how a model is spread: one rank, replicas or shards; collective.

    A model that is sharded over one rank is sharded.

    Args:
        model: the module that is trained.
        disk: that of this rank, which writes where each rank does.
        folder: the `snapshots` folder.
        ranks: all of them.
    """
    if is_sharded(model):
        store = EveryRankStore(disk, folder, ranks)
        return Sharing(store, Shards(store, ranks))
    if ranks.size == 1:
        return Sharing(None, Replicas())
    return Sharing(FirstRankStore(DiskStore(disk, folder), ranks), Replicas(ranks))


@final
class Shards:
    """Each rank holds a part of the state, and what is not spread all hold alike.

    A state in memory is checksummed by each rank for what it holds. Its label is made of the
    checksums of all, so that it is the same everywhere, and differs for another number of
    ranks; what all should hold alike is compared at once. The digest of a state is that of the
    whole tensors, whatever their layout, with the digests of what the ranks have of their own.

    Args:
        store: which can digest a whole state.
        ranks: all of them.
    """

    is_spread = True

    def __init__(self, store: EveryRankStore, ranks: Ranks) -> None:
        self._store = store
        self._ranks = ranks

    def digest(self, state: State, own: Collection[str]) -> str:
        """See `Accord.digest`.

        Raises:
            RankError: ranks hold different values of what they should have alike.
        """
        shared = {name: tree for name, tree in state.items() if name not in own}
        whole = self._store.digest(shared)
        mine = digest({name: state[name] for name in sorted(own)})
        rows = self._ranks.exchange("the digest of the state", mine.encode())
        return blake2b([whole.encode(), *rows])

    def label(self, state: State, own: Collection[str], checksum: str) -> str:
        """See `Accord.label`.

        Raises:
            RankError: ranks hold different values of what they should have alike.
        """
        shared = {name: tree for name, tree in state.items() if name not in own}
        self._ranks.agree("the state", {"what all hold alike": _of_the_rest(shared)})
        rows = self._ranks.exchange("the state in memory", checksum.encode())
        return f"shards:{blake2b(rows)}"

    def fate(self, what: str, error: Exception | None) -> Exception | None:
        """See `Accord.fate`."""
        return fate_of_all(self._ranks, what, error)

    def everywhere(self, what: str, holds: bool) -> bool:
        """See `Accord.everywhere`."""
        rows = self._ranks.exchange(what, json.dumps(holds).encode())
        return all(json.loads(row) for row in rows)


def _of_the_rest(state: Mapping[str, Any]) -> str:
    """Checksum of a state without the tensors that are spread."""
    return checksum(_without_spread(state))


def _without_spread(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return None if is_distributed(tree) else tree
    if isinstance(tree, Mapping):
        return {key: _without_spread(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_without_spread(value) for value in tree]
    if isinstance(tree, tuple):
        return tuple(_without_spread(value) for value in tree)
    return tree
