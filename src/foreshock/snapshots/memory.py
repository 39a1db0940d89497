"""Rewind points in memory: the last few states, without touching the disk."""

from collections import OrderedDict
from typing import Any

from foreshock.core.errors import ConfigError
from foreshock.core.snapshot import SnapshotRef


class MemoryRing:
    """The newest snapshots in memory; the oldest makes room.

    Args:
        capacity: snapshots kept; each costs as much memory as weights and optimizer.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ConfigError(f"the memory ring's capacity is {capacity}; it must be 0 or more")
        self._capacity = capacity
        self._kept: OrderedDict[str, tuple[SnapshotRef, Any]] = OrderedDict()

    def put(self, ref: SnapshotRef, tree: Any) -> None:
        """Keep a snapshot; `tree` must be independent of the live state."""
        if self._capacity == 0:
            return
        self._kept[ref.id] = (ref, tree)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)

    def get(self, snapshot_id: str) -> Any | None:
        """The state of a snapshot, or None if it is not kept (any more)."""
        found = self._kept.get(snapshot_id)
        return found[1] if found else None

    def drop_after(self, step: int) -> None:
        """Let go of the snapshots of later steps: time went back to before them."""
        for snapshot_id in [i for i, (ref, _) in self._kept.items() if ref.step > step]:
            del self._kept[snapshot_id]

    @property
    def refs(self) -> list[SnapshotRef]:
        """The labels of what is kept, oldest first."""
        return [ref for ref, _ in self._kept.values()]
