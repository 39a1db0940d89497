"""How a sharded state is written, as `torch.distributed.checkpoint` asks for it.

Every rank writes and syncs its own two files into a folder that nobody takes for a snapshot;
when all have, the first rank adds the manifest and gives the folder its name. DCP's own
metadata file, a pickle, is never made.
"""

import dataclasses
import io
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import SnapshotRef
from foreshock.durable import Disk
from foreshock.snapshots.sharded_manifest import Chunk, FileFacts, Manifest, gap_or_overlap
from foreshock.snapshots.sharded_sealed import MANIFEST, checked_id, chunk_key
from foreshock.snapshots.sharded_shard import write_shard
from foreshock.snapshots.sharded_state import Described, ShardedState


class ShardedSavePlanner(SavePlanner):
    """Which rank writes what: a shard its holder, a replicated tensor one of its holders.

    Replicated tensors go, largest first, to the holder with the fewest bytes so far.

    Args:
        state: what this rank holds.
        ties: tied tensors, which are not written; the same on every rank.
    """

    def __init__(self, state: ShardedState, ties: dict[str, str]) -> None:
        self._state = state
        self._ties = ties

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Nothing: the state was given."""

    def create_local_plan(self) -> SavePlan:
        items: list[WriteItem] = []
        for name, part in self._state.parts.items():
            if name in self._ties or not part.tensor.numel():
                continue
            offsets, sizes = torch.Size(part.offset), part.tensor.shape
            data = TensorWriteData(
                chunk=ChunkStorageMetadata(offsets=offsets, sizes=sizes),
                properties=TensorProperties(dtype=part.tensor.dtype),
                size=torch.Size(part.shape),
            )
            index = MetadataIndex(name, offsets)
            items.append(WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data))
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return create_default_global_save_plan(_written_once(all_plans))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        return self._state.parts[write_item.index.fqn].tensor


class Logical(NamedTuple):
    """What is the same on every rank and for every layout, see `Manifest`."""

    ref: SnapshotRef
    structure: Any
    tensors: dict[str, Described]
    ties: dict[str, str]


class ShardedWriter(StorageWriter):
    """Writes one snapshot, once.

    Args:
        disk: what it is written through.
        folder: that of all snapshots, on a file system that all ranks share.
        logical: what is the same on every rank.
        rank_state: what this rank has of its own.
    """

    def __init__(self, disk: Disk, folder: Path, logical: Logical, rank_state: Any) -> None:
        self._disk = disk
        self._logical = logical
        self._rank_state = rank_state
        self._final = folder / checked_id(logical.ref.id)
        self._temporary = folder / f".{logical.ref.id}.tmp"  # see `clean_leftovers`
        self._chunks: dict[str, list[Chunk]] = {}
        self._num_ranks = 0

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: the snapshot was named."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing: each rank's place comes with its plan."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._chunks = {
            name: [] for name in self._logical.tensors if name not in self._logical.ties
        }
        for rank, plan in enumerate(plans):
            for item in plan.items:
                if item.tensor_data is None:
                    raise SnapshotError(
                        f"{item.index.fqn} is no tensor and would be pickled: write through "
                        "ShardedStore"
                    )
                chunk = item.tensor_data.chunk
                place = Chunk(rank, tuple(chunk.offsets), tuple(chunk.sizes))
                self._chunks[item.index.fqn].append(place)
        for name, chunks in self._chunks.items():
            if reason := gap_or_overlap(self._logical.tensors[name].shape, chunks):
                raise SnapshotError(f"{name} is not covered by the ranks' parts: {reason}")
        if self._disk.exists(self._final):
            raise FileExistsError(17, "a snapshot of this id exists already", str(self._final))
        if self._disk.exists(self._temporary):
            self._disk.remove_tree(self._temporary)
        self._disk.make_dir(self._temporary)
        self._num_ranks = len(plans)
        places = [(rank, len(plans)) for rank in range(len(plans))]
        return [
            dataclasses.replace(plan, storage_data=place)
            for plan, place in zip(plans, places, strict=True)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        rank, world_size = plan.storage_data
        chunks: dict[str, torch.Tensor] = {}
        for item in plan.items:
            data = planner.resolve_data(item)
            if not isinstance(data, torch.Tensor) or item.index.offset is None:
                raise SnapshotError(f"{item.index.fqn} is no tensor and would be pickled")
            chunks[chunk_key(item.index.fqn, item.index.offset)] = data
        self._disk.make_dir(self._temporary)
        facts = write_shard(
            self._disk,
            self._temporary,
            snapshot_id=self._logical.ref.id,
            rank=rank,
            world_size=world_size,
            chunks=chunks,
            rank_state=self._rank_state,
        )
        done: Future[list[WriteResult]] = Future()
        done.set_result(
            [
                WriteResult(MetadataIndex(name), one.size_bytes, tuple(one))
                for name, one in facts.items()
            ]
        )
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        files = {
            one.index.fqn: FileFacts(*one.storage_data) for result in results for one in result
        }
        for rank, result in enumerate(results):
            for one in result:
                path = self._temporary / one.index.fqn
                if not self._disk.exists(path) or self._disk.size(path) != one.size_in_bytes:
                    raise SnapshotError(
                        f"rank {rank} wrote {path.name}, but the first rank does not see it: "
                        f"{self._final.parent} has to be on a file system that all ranks share"
                    )
        manifest = Manifest(
            ref=self._logical.ref,
            world_size=self._num_ranks,
            structure=self._logical.structure,
            tensors=self._logical.tensors,
            chunks={name: tuple(chunks) for name, chunks in self._chunks.items()},
            ties=self._logical.ties,
            files=files,
        )
        path = self._temporary / MANIFEST
        self._disk.write(path, [manifest.to_bytes()])
        self._disk.sync(path)
        self._disk.sync_dir(self._temporary)
        self._disk.replace(self._temporary, self._final)
        self._disk.sync_dir(self._final.parent)

    def give_up(self) -> None:
        """Remove what was written; for the first rank, when no rank writes any more."""
        with suppress(OSError):
            if self._disk.exists(self._temporary):
                self._disk.remove_tree(self._temporary)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


def _written_once(plans: list[SavePlan]) -> list[SavePlan]:
    """The plans with each chunk in one of them alone, balanced in bytes."""
    holders: dict[MetadataIndex, list[int]] = {}
    sizes: dict[MetadataIndex, int] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            holders.setdefault(item.index, []).append(rank)
            sizes[item.index] = _num_bytes(item)
    loads = [0] * len(plans)
    writers: dict[MetadataIndex, int] = {}
    for index in sorted(holders, key=lambda one: (len(holders[one]) > 1, -sizes[one])):
        writers[index] = min(holders[index], key=lambda rank: (loads[rank], rank))
        loads[writers[index]] += sizes[index]
    return [
        dataclasses.replace(plan, items=[one for one in plan.items if writers[one.index] == rank])
        for rank, plan in enumerate(plans)
    ]


def _num_bytes(item: WriteItem) -> int:
    data = item.tensor_data
    if data is None:
        return 0
    return math.prod(data.chunk.sizes) * data.properties.dtype.itemsize
