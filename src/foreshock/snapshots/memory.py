"""Rewind points in memory: the last few states, without touching the disk."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from foreshock.core.errors import ConfigError
from foreshock.core.snapshot import SnapshotRef
from foreshock.snapshots.checksum import checksum
from foreshock.snapshots.parts import clone_tree
from foreshock.snapshots.slot import Slot


@dataclasses.dataclass
class Held:
    """A snapshot in memory.

    Attributes:
        ref: its label.
        watching: the state of what watches, as plain values and arrays of its own.
        labels: the JSON of the labels of those before it.
        checksum: of the training state, as this rank holds it.
        own: names of the parts in it that are this rank's own, see `Part`.
        locked: whether it is being written; its memory is not used again until it is not.
    """

    ref: SnapshotRef
    watching: Any
    labels: Sequence[Any]
    slot: Slot
    checksum: str = ""
    own: frozenset[str] = frozenset()
    locked: bool = False

    def training(self) -> Any:
        """The training state; its tensors are those of the slot, to be copied from."""
        return self.slot.tree()


class MemoryRing:
    """The newest snapshots in memory; the oldest makes room, and its memory is used again.

    Args:
        capacity: snapshots kept; each costs as much memory as weights and optimizer. One
            more is held while a snapshot is written that has had to make room, or where
            `capacity` is 0.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ConfigError(f"the memory ring's capacity is {capacity}; it must be 0 or more")
        self._capacity = capacity
        self._kept: list[Held] = []
        self._leaving: list[Held] = []
        self._free: list[Slot] = []

    def put(
        self,
        ref: SnapshotRef,
        training: Any,
        watching: Any,
        labels: Sequence[Any],
        own: frozenset[str] = frozenset(),
    ) -> Held:
        """Copy a state in, under a label whose digest is set to its checksum here.

        Args:
            ref: the label; one of the same id is replaced.
            training: the training state; may be the live one.
            watching: of what watches; may be live.
            labels: kept as it is.
            own: likewise.

        Raises:
            SnapshotError: the state holds what a snapshot cannot.
        """
        self._let_go([held for held in self._kept if held.ref.id == ref.id])
        self._let_go(self._kept[: max(0, len(self._kept) + 1 - self._capacity)])
        slot = self._free.pop() if self._free else Slot()
        try:
            slot.fill(training)
        except BaseException:
            self._free.append(slot)
            raise
        summed = checksum(training)
        ref = dataclasses.replace(ref, digest=summed)
        held = Held(ref, clone_tree(watching), labels, slot, summed, own)
        if self._capacity:
            self._kept.append(held)
        else:
            self._leaving.append(held)
        return held

    def get(self, snapshot_id: str) -> Held | None:
        """A snapshot, or None if it is not held (any more)."""
        every = [*self._kept, *self._leaving]
        return next((held for held in every if held.ref.id == snapshot_id), None)

    def discard(self, snapshot_id: str) -> None:
        """Let go of a snapshot."""
        self._let_go([held for held in self._kept if held.ref.id == snapshot_id])

    def drop_after(self, step: int) -> None:
        """Let go of the snapshots of later steps: time went back to before them."""
        self._let_go([held for held in self._kept if held.ref.step > step])

    def settle(self) -> None:
        """Use the memory again of those that had to leave and are not locked any more."""
        done = [held for held in self._leaving if not held.locked]
        self._leaving = [held for held in self._leaving if held.locked]
        self._free += [held.slot for held in done]

    @property
    def refs(self) -> list[SnapshotRef]:
        """The labels of what is kept, oldest first."""
        return [held.ref for held in self._kept]

    @property
    def size_bytes(self) -> int:
        """Size of the largest state held."""
        return max((held.slot.size_bytes for held in [*self._kept, *self._leaving]), default=0)

    def share_bytes(self, world: int) -> int:
        """This rank's share of it, see `Slot.share_bytes`."""
        every = [*self._kept, *self._leaving]
        return max((held.slot.share_bytes(world) for held in every), default=0)

    def _let_go(self, leaving: Sequence[Held]) -> None:
        self._leaving += leaving
        self._kept = [held for held in self._kept if all(held is not one for one in leaving)]
        self.settle()
