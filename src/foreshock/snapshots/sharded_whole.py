"""A sharded snapshot read whole by one process, without a process group."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch

from foreshock.core.errors import SnapshotError
from foreshock.durable import Disk
from foreshock.ranks.digest import digests
from foreshock.snapshots.codec import decode
from foreshock.snapshots.damage import DAMAGE, DamagedError
from foreshock.snapshots.sharded_manifest import Manifest, read_manifest
from foreshock.snapshots.sharded_sealed import chunk_key
from foreshock.snapshots.sharded_shard import ShardReader

_CPU = torch.device("cpu")


class Whole(NamedTuple):
    """A sharded snapshot as one process reads it.

    Attributes:
        tree: what all ranks shared, with whole tensors.
        own: what each rank had of its own, in the order of ranks.
    """

    tree: dict[str, Any]
    own: list[dict[str, Any]]


def read_whole(disk: Disk, folder: Path, snapshot_id: str) -> Whole:
    """Read all of a sharded snapshot.

    Every byte of every file is verified, and then the digest of every tensor.

    Raises:
        DamagedError: a file is missing or damaged.
        SnapshotError: one cannot be read.
    """
    manifest, _ = read_manifest(disk, folder, snapshot_id)
    shards = [ShardReader(disk, folder, manifest, rank) for rank in range(manifest.world_size)]
    for shard in shards:
        shard.verify()
    check_room(manifest)
    try:
        tree = decode(manifest.structure, _tensors(manifest, shards))
    except (SnapshotError, *DAMAGE) as error:
        raise DamagedError(f"snapshot {snapshot_id}: {error}") from error
    return Whole(tree, [shard.rank_state() for shard in shards])


def as_replicas(whole: Whole) -> dict[str, Any]:
    """The tree of a run's snapshot as replicas write it: what ranks have of their own within.

    Of several ranks it is `{"ranks": [...]}`, of one the state alone.

    Raises:
        DamagedError: it is no tree of a run.
    """
    try:
        own = whole.own[0]
        if len(whole.own) > 1:
            own = {name: {"ranks": [one[name] for one in whole.own]} for name in own}
        return {**whole.tree, "training": {**whole.tree["training"], **own}}
    except DAMAGE as error:
        raise DamagedError("its tree is not that of a run") from error


def check_room(manifest: Manifest) -> None:
    """Refuse a manifest whose tensors are not in its files: nothing is allocated for its word.

    Raises:
        DamagedError: they are larger than the files.
    """
    held = sum(
        math.prod(one.shape) * one.dtype.itemsize
        for name, one in manifest.tensors.items()
        if name not in manifest.ties
    )
    if held > sum(one.size_bytes for one in manifest.files.values()):
        raise DamagedError(
            f"snapshot {manifest.ref.id}: its tensors have {held} bytes, more than its files"
        )


def _tensors(manifest: Manifest, shards: list[ShardReader]) -> dict[str, torch.Tensor]:
    found = {
        name: torch.empty(one.shape, dtype=one.dtype)
        for name, one in manifest.tensors.items()
        if name not in manifest.ties
    }
    for rank, shard in enumerate(shards):
        places = {
            chunk_key(name, chunk.offsets): (name, chunk)
            for name, chunk in manifest.by_rank.get(rank, [])
        }
        for key, data in shard.read(list(places)):
            name, chunk = places[key]
            box = tuple(
                slice(start, start + size)
                for start, size in zip(chunk.offsets, chunk.sizes, strict=True)
            )
            found[name][box] = data
    for (name, _), pair in zip(
        found.items(), digests(list(found.values()), _CPU).tolist(), strict=True
    ):
        said = "".join(f"{one % (1 << 64):016x}" for one in pair)
        if said != manifest.tensors[name].digest:
            raise DamagedError(f"snapshot {manifest.ref.id}: {name:.200} has another digest")
    return found | {name: found[other] for name, other in manifest.ties.items()}
