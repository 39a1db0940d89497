"""How a sharded state is read, as `torch.distributed.checkpoint` asks for it.

Each rank reads the chunks that overlap what it holds now, however many ranks wrote them,
verifies each, and copies it into the tensors that are there: nothing is allocated because
a file says so.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from foreshock.core.errors import SnapshotError
from foreshock.durable import Disk
from foreshock.snapshots.sharded_manifest import Manifest
from foreshock.snapshots.sharded_sealed import chunk_key
from foreshock.snapshots.sharded_shard import ShardReader
from foreshock.snapshots.sharded_state import ShardedState


class ShardedLoadPlanner(LoadPlanner):
    """What this rank needs of each tensor.

    Args:
        state: where it goes, in place.
        manifest: of the snapshot.
    """

    def __init__(self, state: ShardedState, manifest: Manifest) -> None:
        self._state = state
        self._manifest = manifest
        self._metadata: Metadata | None = None

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        self._metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        assert self._metadata is not None
        items: list[ReadItem] = []
        for name, part in self._state.parts.items():
            if not part.tensor.numel():
                continue
            stored = self._metadata.state_dict_metadata[self._manifest.stored_as(name)]
            assert isinstance(stored, TensorStorageMetadata)
            own = ChunkStorageMetadata(offsets=torch.Size(part.offset), sizes=part.tensor.shape)
            for item in create_read_items_for_chunk_list(name, stored, [own]):
                index = MetadataIndex(self._manifest.stored_as(name), item.storage_index.offset)
                items.append(dataclasses.replace(item, storage_index=index))
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise SnapshotError(f"{read_item.dest_index.fqn} is no tensor; nothing else is stored so")

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        tensor = self._state.parts[read_item.dest_index.fqn].tensor
        return _box(tensor, read_item.dest_offsets, read_item.lengths)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing: it was copied into its place."""


class ShardedReader(StorageReader):
    """Reads one snapshot.

    Args:
        disk: what it is read from.
        folder: that of all snapshots.
        manifest: of the snapshot, checked.
    """

    def __init__(self, disk: Disk, folder: Path, manifest: Manifest) -> None:
        self._disk = disk
        self._folder = folder
        self._manifest = manifest
        self._ranks = {
            (name, chunk.offsets): chunk.rank
            for name, chunks in manifest.chunks.items()
            for chunk in chunks
        }

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing: the snapshot was named."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tensors = self._manifest.tensors
        return Metadata(
            state_dict_metadata={
                name: TensorStorageMetadata(
                    properties=TensorProperties(dtype=tensors[name].dtype),
                    size=torch.Size(tensors[name].shape),
                    chunks=[
                        ChunkStorageMetadata(
                            offsets=torch.Size(one.offsets), sizes=torch.Size(one.sizes)
                        )
                        for one in chunks
                    ],
                )
                for name, chunks in self._manifest.chunks.items()
            },
            storage_meta=StorageMeta(checkpoint_id=self._manifest.ref.id),
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing: the manifest was given."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        wanted: dict[int, dict[str, list[ReadItem]]] = {}
        for item in plan.items:
            index = item.storage_index
            if item.type != LoadItemType.TENSOR or index.offset is None:
                raise SnapshotError(f"{index.fqn} is no tensor; nothing else is stored so")
            rank = self._ranks[index.fqn, tuple(index.offset)]
            key = chunk_key(index.fqn, index.offset)
            wanted.setdefault(rank, {}).setdefault(key, []).append(item)
        for rank, items in sorted(wanted.items()):
            shard = ShardReader(self._disk, self._folder, self._manifest, rank)
            for key, tensor in shard.read(list(items)):
                for item in items[key]:
                    into = planner.resolve_tensor(item)
                    into.copy_(_box(tensor, item.storage_offsets, item.lengths))
                    planner.commit_tensor(item, into)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


def _box(tensor: torch.Tensor, offsets: torch.Size, lengths: torch.Size) -> torch.Tensor:
    for axis, (start, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(axis, start, length)
    return tensor
