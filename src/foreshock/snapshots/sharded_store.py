"""Sharded durable snapshots: every rank writes its part, any number of ranks reads them.

snapshots/00000120-a00001/
  manifest.json            label, structure, every tensor and its chunks, every file's digest
  rank-00000.safetensors   what rank 0 wrote
  rank-00000.json          the digest of each tensor in it, and rank 0's own state
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import SnapshotRef
from foreshock.durable import Disk
from foreshock.ranks.exchange import Group, gather, num_ranks, own_index
from foreshock.snapshots.damage import blake2b
from foreshock.snapshots.sharded_agreement import UnlikeRanksError, lost, on_every_rank
from foreshock.snapshots.sharded_fit import difference, fitted
from foreshock.snapshots.sharded_manifest import Manifest, read_manifest
from foreshock.snapshots.sharded_reader import ShardedLoadPlanner, ShardedReader
from foreshock.snapshots.sharded_sealed import checked_id, seal
from foreshock.snapshots.sharded_shard import ShardReader
from foreshock.snapshots.sharded_state import (
    Described,
    ShardedState,
    digest_table,
    outline,
    sharded_state,
    state_digest,
    whole_digests,
)
from foreshock.snapshots.sharded_transfer import load, save
from foreshock.snapshots.sharded_writer import Logical, ShardedSavePlanner, ShardedWriter

State = dict[str, Any] | ShardedState


class ShardedStore:
    """The durable snapshots of a run on several ranks; all but `refs` and `remove` collective.

    Args:
        disk: what everything is written through.
        folder: the `snapshots` folder, on a file system that all ranks share.
        group: the ranks; it needs a backend for CPU tensors ("cpu:gloo,cuda:nccl", say), and
            one of its own if snapshots are written from a thread. None is all ranks, or this
            process alone. Its timeout is how long the others wait for a rank that hangs.

    Every rank passes the same tree but for what it holds of each tensor: DDP, FSDP2, HSDP and
    tensor parallelism, not pipeline stages. An error on one rank is raised on all; errors name
    ranks by their place in the group.
    """

    def __init__(self, disk: Disk, folder: Path, group: Group = None) -> None:
        self._disk = disk
        self._folder = folder
        self._group = group
        self._labels: dict[str, tuple[SnapshotRef, frozenset[str]]] = {}  # they never change

    def digest(self, state: State) -> str:
        """Digest of the logical state, whatever the layout; one read of all that is held.

        Raises:
            SnapshotError: the ranks do not hold the same state, or it cannot be held.
        """
        held, described, _ = self._agreed("the state has no digest", state)
        return state_digest(held.structure, described)

    def write(self, ref: SnapshotRef, state: State, rank_state: dict[str, Any]) -> SnapshotRef:
        """Make a snapshot durable; returns its label, with the digest of the state.

        Args:
            ref: its label; its digest is filled in.
            state: the tree that all ranks share, or a copy of it by `staged`.
            rank_state: what this rank has of its own: its random generators.

        Raises:
            SnapshotError: the state holds what a snapshot cannot, is not the same where it
                should be, or a rank is gone.
            OSError: the disk is full or fails on some rank; nothing of it is ever accepted.
        """
        doing = f"snapshot {ref.id:.120} cannot be written"
        held, described, ties = self._agreed(doing, state)
        digest = state_digest(held.structure, described)
        ref = dataclasses.replace(ref, digest=digest, durable=True)
        logical = Logical(ref, held.structure, described, ties)
        planner = ShardedSavePlanner(held, ties)
        writer = ShardedWriter(self._disk, self._folder, logical, rank_state)
        try:
            save(doing, writer, planner, self._group)
        except BaseException:
            if own_index(self._group) == 0:
                writer.give_up()
            raise
        return ref

    def read_into(self, snapshot_id: str, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        """Restore a snapshot into a state dict; returns this rank's own state.

        Its tensors are filled in place, other values are replaced by those of the snapshot.
        Every file is verified before the first tensor is touched, every chunk again when it is
        used, and the digest of the state at the end.

        If another number of ranks wrote it, rank r gets the own state of rank r, and None if
        there was no such rank: it has to make one from its seed and number. What the ranks
        beyond the present ones had of their own is left out.

        Raises:
            SnapshotError: it is missing, damaged or of another state, on whichever rank, or a
                rank is gone; the message names file and reason. If it is the digest that does
                not fit, or a rank that is gone, tensors may have been written to.
        """
        doing = "cannot restore"
        prepared: list[tuple[Manifest, ShardedState, dict[str, Any]]] = []

        def prepare() -> str:
            manifest, seen = read_manifest(self._disk, self._folder, snapshot_id)
            live = sharded_state(state_dict)
            tree = fitted(manifest, live)
            prepared.append((manifest, live, tree))
            self._verify_share(manifest)
            return seen

        self._same_everywhere(doing, on_every_rank(doing, prepare, self._group))
        manifest, live, tree = prepared[0]
        reader = ShardedReader(self._disk, self._folder, manifest)
        planner = ShardedLoadPlanner(live, manifest)
        load(doing, reader, planner, self._group)
        owned: list[dict[str, Any] | None] = []

        def own_state() -> None:
            rank = own_index(self._group)
            there = rank < manifest.world_size
            owned.append(self._shard(manifest, rank).rank_state() if there else None)

        on_every_rank(doing, own_state, self._group)
        _, described, _ = self._agreed(doing, live)
        wrong = [name for name, one in manifest.tensors.items() if described[name] != one]
        if wrong:
            raise SnapshotError(
                f"snapshot {snapshot_id}: restored, {len(wrong)} tensors have another digest, "
                f"{wrong[0]:.200} among them"
            )
        state_dict.clear()
        state_dict.update(tree)
        return owned[0]

    def verify(self, snapshot_id: str) -> None:
        """Read every file of a snapshot and compare its digest; each rank takes a share.

        Raises:
            SnapshotError: it is missing or damaged; the message names file and reason.
        """

        def verify() -> str:
            manifest, seen = read_manifest(self._disk, self._folder, snapshot_id)
            self._verify_share(manifest)
            return seen

        doing = "cannot verify"
        self._same_everywhere(doing, on_every_rank(doing, verify, self._group))

    def refs(self) -> tuple[list[SnapshotRef], list[str]]:
        """The labels of all readable snapshots, oldest first, and why others were passed over.

        Manifests are read and files counted; their content is not.
        """
        found: list[SnapshotRef] = []
        objections: list[str] = []
        exists = self._disk.exists(self._folder)
        for name in self._disk.list(self._folder) if exists else []:
            if not name.startswith("."):
                try:
                    found.append(self._label(name))
                except SnapshotError as error:
                    objections.append(str(error))
        return sorted(found, key=lambda ref: (ref.step, ref.attempt)), objections

    def remove(self, snapshot_id: str) -> None:
        """Remove a snapshot; for one rank. A crash leaves it whole, or no snapshot any more."""
        self._labels.pop(snapshot_id, None)
        path = self._folder / checked_id(snapshot_id)
        hidden = path.with_name(f".{snapshot_id}.tmp")
        if self._disk.exists(hidden):
            self._disk.remove_tree(hidden)
        self._disk.replace(path, hidden)
        self._disk.remove_tree(hidden)

    def _agreed(
        self, doing: str, state: State
    ) -> tuple[ShardedState, dict[str, Described], dict[str, str]]:
        """What this rank holds, every whole tensor, and what is tied on every rank."""
        held: list[tuple[ShardedState, torch.Tensor]] = []

        def describe() -> list[Any]:
            one = state if isinstance(state, ShardedState) else sharded_state(state)
            if "d" not in one.structure:
                raise SnapshotError("the state is no dict")
            held.append((one, digest_table(one)))
            return [blake2b([seal(outline(one))]), sorted(one.ties.items())]

        told = on_every_rank(doing, describe, self._group)
        own, table = held[0]
        if any(one[0] != told[0][0] for one in told):
            outlines = on_every_rank(doing, lambda: outline(own), self._group)
            raise UnlikeRanksError(f"{doing}: {difference(outlines)}")
        ties = [dict(map(tuple, one[1])) for one in told]
        common = {name: to for name, to in own.ties.items() if all(t.get(name) == to for t in ties)}
        try:
            tables = gather(table, self._group)
        except RuntimeError as error:
            raise lost(doing, error) from error
        try:
            described = whole_digests(own, tables, range(len(tables)))
        except UnlikeRanksError as error:
            raise UnlikeRanksError(f"{doing}: {error}") from error
        return own, described, common

    def _verify_share(self, manifest: Manifest) -> None:
        for rank in range(own_index(self._group), manifest.world_size, num_ranks(self._group)):
            self._shard(manifest, rank).verify()

    def _shard(self, manifest: Manifest, rank: int) -> ShardReader:
        return ShardReader(self._disk, self._folder, manifest, rank)

    def _same_everywhere(self, doing: str, seen: list[str]) -> None:
        if len(set(seen)) > 1:
            raise SnapshotError(
                f"{doing}: the ranks see different manifests; {self._folder} has to be on a file "
                "system that all ranks share"
            )

    def _label(self, name: str) -> SnapshotRef:
        if name not in self._labels:
            manifest, _ = read_manifest(self._disk, self._folder, name)
            self._labels[name] = manifest.ref, frozenset(manifest.files)
        ref, files = self._labels[name]
        if missing := files - set(self._disk.list(self._folder / name)):
            raise SnapshotError(f"snapshot {name}: {min(missing)} is missing")
        return ref
