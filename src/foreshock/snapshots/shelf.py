"""The durable snapshots of a run: written one at a time, dropped, and known to be damaged."""

import dataclasses
import time
from collections.abc import Callable, Collection
from pathlib import Path

from foreshock.core.retention import Retention, Stored, retain
from foreshock.core.snapshot import SnapshotRef
from foreshock.durable import Disk, RealDisk
from foreshock.snapshots.disk import DiskStore
from foreshock.snapshots.labels import Objection
from foreshock.snapshots.memory import Held
from foreshock.snapshots.stores import Store
from foreshock.snapshots.writer import Writer, Written

_CONCURRENT_DISKS: tuple[type, ...] = (RealDisk,)
"""Disks that a thread may write to while another does."""
_SPARE_BYTES = 1 << 16
"""For the manifest, before one was written."""


class Shelf:
    """What a run keeps on disk.

    Args:
        disk: what everything is written through.
        folder: the `snapshots` folder.
        retention: what is kept.
        asynchronous: whether a write goes on while the training does; only where the disk
            may be used by two threads.
        store: where they are; by default a `DiskStore` in `folder`.
        clock: seconds that only rise, for `write_secs`.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        retention: Retention,
        *,
        asynchronous: bool,
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store: Store = DiskStore(disk, folder) if store is None else store
        """Where they are."""
        self._retention = retention
        self.bad: set[str] = set()
        """Known to be damaged: they are not read again."""
        self.dropped: set[str] = set()
        """To be removed, or removed: they count as gone."""
        self._asynchronous = asynchronous and isinstance(disk, _CONCURRENT_DISKS)
        self._writer: Writer | None = None
        self._held: Held | None = None
        self._here: Written | None = None
        self._written_bytes = 0
        self._clock = clock
        self.write_secs: float | None = None
        """How long the last write took that succeeded; None before the first."""

    @property
    def writing(self) -> Held | None:
        """The snapshot that is being written, or whose write was not collected."""
        return self._held

    def write(self, held: Held) -> None:
        """Begin to make a snapshot durable; `collect` says what came of it.

        Its memory is locked until then.

        Raises:
            RuntimeError: another is being written.
        """
        if self._writer is None:
            self._writer = Writer(asynchronous=self._asynchronous)
        held.ref = dataclasses.replace(held.ref, durable=True)
        ref = held.ref
        self.store.begin(ref)
        self._writer.start(ref.id, lambda: self._timed(held))
        self._held, held.locked = held, True

    def _timed(self, held: Held) -> int:
        begun = self._clock()
        size = self.store.save(held)
        self.write_secs = self._clock() - begun
        return size

    def collect(self, *, wait: bool = False) -> Written | None:
        """What came of a write, once it is whole; None while there is nothing to tell.

        Where ranks share the store they meet for it, if one is being written.
        """
        if self._writer is None or self._held is None:
            return None
        if self._here is None:
            self._here = self._writer.collect(wait=wait)
        written = self.store.ended(self._held.ref, self._here)
        if written is None:
            return None
        self._here = None
        self._held.locked = False
        if written.error is not None:
            self._held.ref = dataclasses.replace(self._held.ref, durable=False)
        self._held = None
        if written.result:
            self._written_bytes = written.result
        return written

    def refs(self) -> tuple[list[SnapshotRef], list[Objection]]:
        """The labels of what is there, oldest first, and why others were passed over."""
        stored, objections = self.stored()
        return [one.ref for one in stored], objections

    def stored(self) -> tuple[list[Stored], list[Objection]]:
        """The same with sizes."""
        return self.store.stored(self.bad | self.dropped)

    def surplus(
        self,
        alive: Callable[[SnapshotRef], bool],
        room_bytes: int | None = None,
        *,
        needed: Collection[str] = (),
    ) -> list[tuple[str, str]]:
        """Ids of what is not to be kept, and why; see `core.retention`."""
        fates = retain(
            self.stored()[0], self._retention, alive=alive, room_bytes=room_bytes, needed=needed
        )
        return [(fate.ref.id, fate.why) for fate in fates if not fate.kept]

    def drop(self, snapshot_ids: Collection[str]) -> None:
        """Remove snapshots, after what is being written; they count as gone from now on.

        Raises:
            OSError: the disk failed, where it is not done in the background.
        """
        names = sorted(snapshot_ids)
        self.dropped.update(names)
        if not names:
            return
        if self._writer is not None:
            self._writer.then(lambda: self.store.remove_all(names))
        else:
            self.store.remove_all(names)

    def room(self, held_bytes: int, share_bytes: int = 0) -> tuple[int, int, int] | None:
        """Bytes that are free, that the next snapshot needs, and that all have now.

        None where the disk does not say.

        Args:
            held_bytes: size of the state's tensors, as this rank holds them.
            share_bytes: this rank's share of them, where ranks hold them together.
        """
        try:
            total = self.store.total_bytes(held_bytes, share_bytes)
            needed = max(self._written_bytes, total + total // 50 + _SPARE_BYTES)
            stored, _ = self.stored()
            return self.store.free_bytes(), needed, sum(one.size_bytes for one in stored)
        except OSError:
            return None

    def close(self) -> None:
        """Wait for what is being written or removed."""
        if self._writer is not None:
            self._writer.close()
