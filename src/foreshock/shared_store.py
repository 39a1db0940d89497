"""The durable snapshots that ranks have together: of replicas, and of shards."""

import errno
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, final

import torch

from foreshock.accord import fate_of_all
from foreshock.core.errors import ForeshockError, SnapshotError
from foreshock.core.retention import Stored
from foreshock.core.snapshot import SnapshotRef
from foreshock.durable import Disk
from foreshock.ranks.agreement import Ranks
from foreshock.ranks.placement import is_distributed, layout_of, own_box, own_data, spread
from foreshock.snapshots.codec import decode
from foreshock.snapshots.damage import DAMAGE, DamagedError
from foreshock.snapshots.disk import DiskStore
from foreshock.snapshots.labels import Objection
from foreshock.snapshots.memory import Held
from foreshock.snapshots.sharded_agreement import LostRankError, UnlikeRanksError
from foreshock.snapshots.sharded_manifest import Manifest, read_manifest
from foreshock.snapshots.sharded_shard import ShardReader
from foreshock.snapshots.sharded_state import sharded_state
from foreshock.snapshots.sharded_store import ShardedStore
from foreshock.snapshots.sharded_whole import check_room
from foreshock.snapshots.stores import Like, Loaded
from foreshock.snapshots.writer import Written


class Inventory:
    """The durable snapshots that there are, known alike to all ranks; collective when made.

    What the first rank finds in the folder is what there is, also where a network file system
    shows another rank something older; from then on each rank keeps count for itself.

    Args:
        store: the snapshots as this rank sees them.
        ranks: all of them.
    """

    def __init__(self, store: DiskStore, ranks: Ranks) -> None:
        def look() -> Any:
            stored, objections = store.stored()
            told = [[one.ref.to_json(), one.size_bytes] for one in stored]
            return [told, [[one.id, str(one), one.lasting] for one in objections]]

        told, objections = ranks.from_first("snapshots on disk", look)
        self._stored = [Stored(SnapshotRef.from_json(ref), size) for ref, size in told]
        self._objections = [Objection(*one[:2], lasting=one[2]) for one in objections]

    def add(self, ref: SnapshotRef, size: int) -> None:
        """One was written."""
        others = [one for one in self._stored if one.ref.id != ref.id]
        self._stored = sorted(
            [*others, Stored(ref, size)], key=lambda one: (one.ref.step, one.ref.attempt)
        )

    def remove(self, snapshot_ids: Iterable[str]) -> None:
        """Some are to be removed."""
        names = set(snapshot_ids)
        self._stored = [one for one in self._stored if one.ref.id not in names]
        self._objections = [one for one in self._objections if one.id not in names]

    def stored(self, but: Iterable[str] = ()) -> tuple[list[Stored], list[Objection]]:
        """The labels and sizes of all readable snapshots, and why others were passed over."""
        gone = set(but)
        objections = [one for one in self._objections if one.id not in gone]
        return [one for one in self._stored if one.ref.id not in gone], objections


class _SharedStore:
    """What all stores of several ranks have alike: the first rank's folder is the truth.

    Args:
        store: the snapshots as this rank sees them.
        ranks: all of them.
    """

    shared = True

    def __init__(self, store: DiskStore, ranks: Ranks) -> None:
        self._store = store
        self._ranks = ranks
        self._inventory = Inventory(store, ranks)

    def begin(self, ref: SnapshotRef) -> None:
        """See that every rank is about to write the same state.

        Raises:
            RankError: they are not; nothing is written.
        """
        self._ranks.agree(f"snapshot {ref.id}", {"the state": ref.digest})

    def stored(self, but: Iterable[str] = ()) -> tuple[list[Stored], list[Objection]]:
        """See `Inventory.stored`."""
        return self._inventory.stored(but)

    def remove_all(self, snapshot_ids: Sequence[str]) -> None:
        """Remove several snapshots; one that is gone already is fine.

        Raises:
            OSError: the first rank's disk failed, on that rank.
        """
        self._inventory.remove(snapshot_ids)
        if self._ranks.is_first:
            self._store.remove_all(snapshot_ids)

    def free_bytes(self) -> int:
        """Bytes that the first rank's disk has room for."""
        return self._ranks.from_first("free bytes", self._store.free_bytes)


@final
class FirstRankStore(_SharedStore):
    """Durable snapshots of replicas: the first rank writes, all read, and all know the same.

    See `stores.Store`; a sharded snapshot is read whole by every rank.
    """

    def save(self, held: Held) -> int:
        """Make a snapshot durable, on the first rank; return its size.

        Raises:
            OSError: its disk is full or fails.
        """
        return self._store.save(held) if self._ranks.is_first else 0

    def ended(self, ref: SnapshotRef, written: Written | None) -> Written | None:
        """What came of a write on the first rank."""
        what = f"writing snapshot {ref.id}"
        told = self._ranks.from_first(what, lambda: told_of(written))
        if told is None:
            return None
        found = heard_of(ref.id, told, written if self._ranks.is_first else None)
        if found.error is None:
            self._inventory.add(ref, found.result or 0)
        return found

    def load(self, snapshot_id: str, like: Like, own: frozenset[str]) -> Loaded:
        """Read a snapshot on every rank, verifying every byte.

        Raises:
            DamagedError: its files are damaged, as the first rank reads them.
            SnapshotError: it cannot be read, on this rank or on another.
        """
        loaded: Loaded | None = None
        error: SnapshotError | None = None
        try:
            loaded = self._store.load(snapshot_id, like, own)
        except SnapshotError as caught:
            # Another rank may be shown an older file: it is damaged where the first says so.
            error = caught if self._ranks.is_first else SnapshotError(str(caught))
        fate = fate_of_all(self._ranks, f"reading {snapshot_id}", error)
        if fate is not None:
            raise fate
        assert loaded is not None
        return loaded

    def total_bytes(self, held_bytes: int, share_bytes: int) -> int:
        """The first rank writes all of it."""
        return held_bytes


@final
class EveryRankStore(_SharedStore):
    """Durable snapshots of shards: every rank writes what it holds, and reads what it will hold.

    See `stores.Store` and `ShardedStore`. One that a run of replicas has written is read too:
    each rank takes its part of it.

    Args:
        disk: what this rank writes and reads through.
        folder: the `snapshots` folder, on a file system that all ranks share.
        ranks: all of them.
    """

    def __init__(self, disk: Disk, folder: Path, ranks: Ranks) -> None:
        super().__init__(DiskStore(disk, folder), ranks)
        self._disk = disk
        self._folder = folder
        # A thread writes while the ranks may read: the collectives must not meet.
        self._writing = ShardedStore(disk, folder, ranks.new_group())
        self._reading = ShardedStore(disk, folder, ranks.new_group())
        self._label: SnapshotRef | None = None  # of what was written last

    def digest(self, tree: dict[str, Any]) -> str:
        """Digest of a state whatever its layout.

        Raises:
            RankError: ranks hold different values of it, or one is gone.
        """
        try:
            return self._reading.digest(tree)
        except SnapshotError as error:
            raise self._of_ranks("the digest of the state", error) from error

    def save(self, held: Held) -> int:
        """Write what this rank holds, together with the others; the size of all.

        Raises:
            SnapshotError: ranks differ, or one is gone.
            OSError: the disk of some rank is full or fails.
        """
        training = held.training()
        own = {name: tree for name, tree in training.items() if name in held.own}
        tree = {
            "training": {name: one for name, one in training.items() if name not in held.own},
            "watching": held.watching,
            "labels": list(held.labels),
        }
        self._label = self._writing.write(held.ref, tree, own)
        return self._store.one(held.ref.id).size_bytes if self._ranks.is_first else 0

    def ended(self, ref: SnapshotRef, written: Written | None) -> Written | None:
        """What came of a write, once it has ended on every rank.

        Raises:
            RankError: ranks hold different values of what they should have alike, or one is gone.
        """
        what = f"writing snapshot {ref.id}"
        told = told_of(written)
        rows = [json.loads(row) for row in self._ranks.exchange(what, json.dumps(told).encode())]
        failed = [row for row in rows if row is not None and row["error"] is not None]
        late = [rank for rank, row in enumerate(rows) if row is None]
        for kind in (LostRankError, UnlikeRanksError):
            for row in failed:
                if row["error"][0] == kind.__name__:
                    raise self._of_ranks(what, kind(row["error"][2]), late)
        if late:
            return None
        if failed:
            return heard_of(ref.id, failed[0])
        self._inventory.add(self._label or ref, rows[0]["size"])
        return heard_of(ref.id, rows[0])

    def load(self, snapshot_id: str, like: Like, own: frozenset[str]) -> Loaded:
        """Read what this rank is to hold, every byte that is used verified.

        Raises:
            DamagedError: files are damaged, as some rank reads them.
            SnapshotError: they cannot be read, or do not fit.
            RankError: a rank is gone.
        """
        looking = f"looking at {snapshot_id}"
        if not self._on_all(looking, lambda: self._store.is_sharded(snapshot_id)):
            reading = f"reading {snapshot_id}"
            return self._on_all(reading, lambda: self._part_of_whole(snapshot_id, like, own))

        def prepare() -> tuple[Manifest, dict[str, Any]]:
            manifest, _ = read_manifest(self._disk, self._folder, snapshot_id)
            check_room(manifest)
            return manifest, decode(manifest.structure, _buffers(manifest, like))

        manifest, tree = self._on_all(f"preparing to read {snapshot_id}", prepare)
        try:
            found = self._reading.read_into(snapshot_id, tree)
        except LostRankError as error:
            raise self._of_ranks(f"reading {snapshot_id}", error) from error
        except OSError as error:
            raise SnapshotError(f"snapshot {snapshot_id}: {error}") from error

        def own_state() -> dict[str, Any]:
            own_here: Any = found
            if found is None:
                own_here = ShardReader(self._disk, self._folder, manifest, 0).rank_state()
            if not isinstance(own_here, dict):
                raise DamagedError(f"snapshot {snapshot_id}: a rank's own state is no dict")
            if found is not None:
                return own_here
            return {name: {"ranks": [state]} for name, state in own_here.items()}

        state = self._on_all(f"own state of {snapshot_id}", own_state)
        anew = () if found is not None else tuple(name for name in state if name in own)
        return Loaded(tree, state, anew, manifest.world_size, ())

    def total_bytes(self, held_bytes: int, share_bytes: int) -> int:
        """The shares of all ranks."""
        rows = self._ranks.exchange("size of the state", str(share_bytes).encode())
        return sum(int(row) for row in rows)

    def _part_of_whole(self, snapshot_id: str, like: Like, own: frozenset[str]) -> Loaded:
        """This rank's part of what a run of replicas has written."""
        whole = self._store.load(snapshot_id).tree
        states = {name: _states(whole["training"].pop(name)) for name in sorted(own)}
        state = sharded_state({"training": whole["training"]})
        tensors = {
            name: _part(one, like(name, tuple(one.shape))) for name, one in state.tensors.items()
        }
        tree = whole | decode(state.structure, tensors)
        rank, size = self._ranks.rank, max((len(one) for one in states.values()), default=1)
        given = {
            name: some[rank] if rank < len(some) else {"ranks": some[:1]}
            for name, some in states.items()
        }
        return Loaded(tree, given, tuple(given) if rank >= size else (), size, ())

    def _on_all(self, what: str, act: Callable[[], Any]) -> Any:
        """Act on every rank; where one fails, all fail alike."""
        result: Any = None
        error: Exception | None = None
        try:
            result = act()
        except OSError as caught:
            error = SnapshotError(f"{what}: {caught}")
        except (ForeshockError, *DAMAGE) as caught:
            error = caught
        if (fate := fate_of_all(self._ranks, what, error)) is not None:
            raise fate
        return result

    def _of_ranks(self, what: str, error: SnapshotError, late: Sequence[int] = ()) -> Exception:
        """The error of all ranks that one of a sharded snapshot means; itself if none."""
        if isinstance(error, LostRankError):
            return self._ranks.lost(what, error, late)
        return self._ranks.differ(what, error) if isinstance(error, UnlikeRanksError) else error


def _buffers(manifest: Manifest, like: Like) -> dict[str, torch.Tensor]:
    """Room for each tensor, laid out as the run has it."""
    found: dict[str, torch.Tensor] = {}
    for name, one in manifest.tensors.items():
        live = like(name, one.shape)
        layout = None if live is None else layout_of(live)
        shape = one.shape if live is None or layout is None else own_data(live).shape
        found[name] = spread(torch.empty(shape, dtype=one.dtype), layout)
    return found


def _part(whole: torch.Tensor, live: torch.Tensor | None) -> torch.Tensor:
    """What this rank holds of a whole tensor that is laid out like a live one."""
    if live is None or not is_distributed(live):
        return whole
    return spread(own_box(whole, live).clone(), layout_of(live))


def _states(tree: Any) -> list[Any]:
    """The states of all ranks, from the tree of a `PerRankPart` of replicas."""
    return list(tree["ranks"]) if isinstance(tree, dict) and set(tree) == {"ranks"} else [tree]


def told_of(written: Written | None) -> Any:
    """What came of a write, as JSON; None if it goes on."""
    if written is None:
        return None
    error = written.error
    number = (error.errno or errno.EIO) if isinstance(error, OSError) else None
    said = None if error is None else [type(error).__name__, number, f"{error!s:.500}"]
    return {"size": written.result or 0, "error": said}


def heard_of(name: str, told: Any, own: Written | None = None) -> Written:
    """Undo `told_of`; `own` is what it was made of, on the rank where it was."""
    if own is not None:
        return own
    if told["error"] is None:
        return Written(name, told["size"], None)
    kind, number, text = told["error"]
    if number is not None:
        return Written(name, None, OSError(number, text))
    known = {"MemoryError": MemoryError, "RuntimeError": RuntimeError}
    return Written(name, None, known.get(kind, SnapshotError)(text))
