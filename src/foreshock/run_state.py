"""The rewound state of a run, and its snapshots in memory and on disk."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from foreshock.core.errors import ForeshockError, SnapshotError
from foreshock.core.snapshot import Health, SnapshotRef, in_lineage
from foreshock.durable import Disk
from foreshock.recipes import Cadence
from foreshock.snapshots.codec import DAMAGE, digest
from foreshock.snapshots.disk import DiskStore
from foreshock.snapshots.memory import MemoryRing
from foreshock.snapshots.parts import Part, clone_tree


class Restored(NamedTuple):
    """What a restore did.

    Attributes:
        ref: the snapshot that was restored.
        watching: the state of what watches, for the monitor.
        digest_equal: whether the restored state has the digest it was captured with.
        passed_over: snapshots that could not be used, and why.
    """

    ref: SnapshotRef
    watching: Any
    digest_equal: bool
    passed_over: tuple[str, ...]


class RunState:
    """Captures and restores the parts of a run, and keeps the snapshots.

    Two trees make a snapshot: `training` (weights, optimizer, schedule, scaler, RNG,
    stream, user state), which has the digest, and `watching` (detectors, timeline).

    Args:
        parts: what is rewound, by name.
        disk: what durable snapshots are written through.
        folder: where.
        cadence: how many are kept.
    """

    def __init__(
        self, parts: dict[str, Part], *, disk: Disk, folder: Path, cadence: Cadence
    ) -> None:
        self._parts = parts
        self._memory = MemoryRing(cadence.memory_keep)
        self._store = DiskStore(disk, folder, cadence.disk_keep)
        self._labels: list[SnapshotRef] = []
        self._num_labels = cadence.memory_keep
        self._pending: dict[str, Any] = {}

    def add(self, name: str, part: Part) -> None:
        """Add a part. If a state was restored that has one of this name, it gets it now.

        Raises:
            SnapshotError: the name is taken.
        """
        if name in self._parts:
            raise SnapshotError(f"{name!r} is tracked already; choose another name")
        self._parts[name] = part
        if name in self._pending:
            part.restore(self._pending.pop(name))

    def digest(self) -> str:
        """Digest of the training state as it is now."""
        return digest(self._capture())

    def take(
        self,
        *,
        step: int,
        attempt: int,
        position: int,
        health: Health,
        watching: Any,
        durable: bool,
    ) -> SnapshotRef:
        """Take a snapshot, in memory and, if `durable`, on disk.

        Raises:
            SnapshotError: the state holds what a snapshot cannot.
            OSError: the disk is full or fails; the one in memory has been taken.
        """
        training = clone_tree(self._capture())
        labels = [ref for ref in self._labels if ref.step < step]
        tree = {
            "training": training,
            "watching": clone_tree(watching),
            "labels": [label.to_json() for label in labels],
        }
        ref = SnapshotRef(
            id=f"{step:08d}-a{attempt:05d}",
            attempt=attempt,
            step=step,
            position=position,
            durable=False,
            digest=digest(training),
            health=health,
        )
        self._memory.put(ref, tree)
        self._label([*labels, ref])
        if durable:
            ref = dataclasses.replace(ref, durable=True)
            self._store.write(ref, tree)
            self._memory.put(ref, tree)
        return ref

    def rotate(self, rollbacks: Sequence[tuple[int, int]]) -> None:
        """Remove durable snapshots that were undone, and those beyond what is to be kept."""
        self._store.rotate(lambda ref: in_lineage(ref, rollbacks))

    def has_any(self) -> bool:
        """Whether anything durable is there, whole or damaged."""
        found, objections = self._store.refs()
        return bool(found or objections)

    def in_memory(self) -> list[SnapshotRef]:
        """The snapshots in memory."""
        return self._memory.refs

    def held(self, rollbacks: Sequence[tuple[int, int]]) -> list[SnapshotRef]:
        """The snapshots of the run's lineage, in memory and on disk."""
        on_disk, _ = self._store.refs()
        in_memory = {ref.id for ref in self._memory.refs}
        refs = self._memory.refs + [ref for ref in on_disk if ref.id not in in_memory]
        return [ref for ref in refs if in_lineage(ref, rollbacks)]

    def refs(self, rollbacks: Sequence[tuple[int, int]]) -> list[SnapshotRef]:
        """What a rollback may aim at: those held, and the last ones that were in memory.

        A label is rewound with the run and outlives the process, unlike its snapshot. A
        rollback to one that is gone begins with an older one and trains the steps between
        again, so that a run which was killed sets aside no more data than one which was not.
        """
        held = self.held(rollbacks)
        steps = {ref.step for ref in held}
        return held + [label for label in self._labels if label.step not in steps]

    def restore(
        self,
        rollbacks: Sequence[tuple[int, int]],
        *,
        snapshot_id: str | None = None,
        at_most_step: int | None = None,
    ) -> Restored:
        """Restore a snapshot: the one named, else the newest of at most a step.

        One that is missing or damaged is passed over with its reason, down to the last
        good one.

        Raises:
            SnapshotError: none is left.
        """
        refs = sorted(self.held(rollbacks), key=lambda ref: (-ref.step, -ref.attempt))
        _, objections = self._store.refs()
        passed_over = list(objections)
        named = [ref for ref in refs if ref.id == snapshot_id]
        older = [
            ref
            for ref in refs
            if ref.id != snapshot_id and (at_most_step is None or ref.step <= at_most_step)
        ]
        for ref in named + older:
            try:
                tree = self._memory.get(ref.id) or self._store.read(ref.id)
                labels = [SnapshotRef.from_json(label) for label in tree["labels"]]
                equal = self._put_back(tree["training"]) == ref.digest
            except torch.OutOfMemoryError:
                raise  # no fault of the snapshot's
            except (ForeshockError, *DAMAGE) as error:
                passed_over.append(f"{ref.id}: {error}")
                continue
            if not equal:
                passed_over.append(f"{ref.id}: the restored state has another digest")
                continue
            self._label([*labels, ref])
            self._memory.put(ref, tree)  # the next look back needs no disk
            return Restored(ref, tree["watching"], equal, tuple(passed_over))
        detail = "; ".join(passed_over) or "there is none"
        raise SnapshotError(f"no snapshot could be restored: {detail}")

    def visit(self, refs: Sequence[SnapshotRef], look: Callable[[], Any]) -> list[Any]:
        """Look at earlier states in memory, one after the other, and come back to the present.

        Raises:
            SnapshotError: the present state could not be put back exactly.
        """
        trees = [tree for ref in refs if (tree := self._memory.get(ref.id)) is not None]
        if not trees:
            return []
        present = clone_tree(self._capture())
        expected = digest(present)
        try:
            seen: list[Any] = []
            for tree in trees:
                self._put_back(tree["training"])
                seen.append(look())
            return seen
        finally:
            if self._put_back(present) != expected:
                raise SnapshotError("the present state could not be put back after a look back")

    def rewound_to(self, step: int) -> None:
        """Let go of the states in memory that have been undone."""
        self._memory.drop_after(step)

    def optimizer_is_finite(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether every moment of the optimizer is finite."""
        tensors = [
            value
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel()
        ]
        if not tensors:
            return True
        sums = torch._foreach_norm(tensors, dtype=torch.float32)
        return bool(torch.isfinite(torch.stack([one.cpu() for one in sums])).all())

    def _put_back(self, training: dict[str, Any]) -> str:
        for name, part in self._parts.items():
            if name not in training:
                raise SnapshotError(f"the snapshot does not hold {name!r}, which this run tracks")
            part.restore(training[name])
        known = set(self._parts)
        self._pending = {name: tree for name, tree in training.items() if name not in known}
        return digest(self._capture())

    def _capture(self) -> dict[str, Any]:
        """What is tracked now and what waits for its owner, in an order of their own."""
        captured = {name: part.capture() for name, part in self._parts.items()}
        return dict(sorted((captured | self._pending).items()))

    def _label(self, labels: list[SnapshotRef]) -> None:
        self._labels = labels[-self._num_labels :] if self._num_labels else []
