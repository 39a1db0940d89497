"""The rewound state of a run, and its snapshots in memory and on disk."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from foreshock.accord import Accord, Replicas
from foreshock.core.errors import ForeshockError, SnapshotError
from foreshock.core.snapshot import Health, SnapshotRef, in_lineage
from foreshock.durable import Disk
from foreshock.ranks.agreement import RankError
from foreshock.recipes import Cadence
from foreshock.snapshots.checksum import checksum, is_checksum
from foreshock.snapshots.codec import digest
from foreshock.snapshots.damage import DAMAGE, DamagedError
from foreshock.snapshots.finite import has_finite_state
from foreshock.snapshots.labels import Objection
from foreshock.snapshots.live_layout import like_live
from foreshock.snapshots.memory import Held, MemoryRing
from foreshock.snapshots.parts import Part, clone_tree
from foreshock.snapshots.shelf import Shelf
from foreshock.snapshots.stores import Loaded, Store
from foreshock.snapshots.writer import Written


class Restored(NamedTuple):
    """What a restore did.

    Attributes:
        ref: the snapshot that was restored.
        watching: the state of what watches, for the monitor.
        digest_equal: whether the restored state has the digest it was captured with.
        passed_over: snapshots that could not be used, and why.
        num_ranks: how many ranks wrote the parts that each has of its own, where those that
            are here now are not as many; None where they are, or there are no such parts.
    """

    ref: SnapshotRef
    watching: Any
    digest_equal: bool
    passed_over: tuple[Objection, ...]
    num_ranks: int | None = None


class _Back(NamedTuple):  # the state of what watches, and the ranks that wrote it
    watching: Any
    num_ranks: int | None


class RunState:
    """Captures and restores the parts of a run, and keeps the snapshots.

    Two trees make a snapshot: `training` (weights, optimizer, schedule, scaler, RNG,
    stream, user state), which has the digest, and `watching` (detectors, timeline).

    A state that never left memory is held to a checksum (see `snapshots.checksum`), at the
    speed of memory: its copy back is made, and what is live then must have the checksum of
    what was live when it was taken. One from disk has every byte of its files held to
    BLAKE2b, and what is live then to the checksum and to BLAKE2b of the state. On several ranks
    each does so for what it holds, and a state is restored if it is on all.

    Args:
        parts: what is rewound, by name.
        disk: what durable snapshots are written through.
        folder: where.
        cadence: how many are kept, and whether they are written in the background.
        store: see `Shelf`.
        accord: what ranks make of it together; by default there is one.
        num_ranks: how many there are.
    """

    def __init__(
        self,
        parts: dict[str, Part],
        *,
        disk: Disk,
        folder: Path,
        cadence: Cadence,
        store: Store | None = None,
        accord: Accord | None = None,
        num_ranks: int = 1,
    ) -> None:
        self._parts = parts
        self._accord: Accord = Replicas() if accord is None else accord
        self.num_ranks = num_ranks
        """How many ranks there are."""
        self._memory = MemoryRing(cadence.memory_keep)
        self.shelf = Shelf(
            disk, folder, cadence.retention, asynchronous=cadence.asynchronous, store=store
        )
        """The durable snapshots."""
        self._labels: list[SnapshotRef] = []
        self._num_labels = cadence.memory_keep
        self._pending: dict[str, Any] = {}
        self._pending_own: frozenset[str] = frozenset()

    def add(self, name: str, part: Part) -> None:
        """Add a part. If a state was restored that has one of this name, it gets it now.

        Raises:
            SnapshotError: the name is taken.
        """
        if name in self._parts:
            raise SnapshotError(f"{name!r} is tracked already; choose another name")
        self._parts[name] = part
        if name in self._pending:
            given = self._pending.pop(name)
            part.restore(given)
            self._pending_own -= {name}
            same = not part.own or checksum(part.capture()) == checksum(given)
            if part.own and not self._accord.everywhere(f"tracking {name}", same):
                for ref in self._memory.refs:  # its own by now, which they do not hold yet
                    self._memory.discard(ref.id)

    def digest(self) -> str:
        """Digest of the training state as it is now; on several ranks all must ask for it."""
        return self._accord.digest(self._capture(), self._own)

    # ---- taking ---------------------------------------------------------------------

    def take(
        self, *, step: int, attempt: int, position: int, health: Health, watching: Any
    ) -> SnapshotRef:
        """Take a snapshot in memory; `write` makes it durable.

        Raises:
            SnapshotError: the state holds what a snapshot cannot.
        """
        self._memory.settle()
        labels = [ref for ref in self._labels if ref.step < step]
        ref = SnapshotRef(
            id=f"{step:08d}-a{attempt:05d}",
            attempt=attempt,
            step=step,
            position=position,
            durable=False,
            digest="",
            health=health,
        )
        held = self._hold(ref, self._capture(), watching, [label.to_json() for label in labels])
        self._label([*labels, held.ref])
        return held.ref

    def write(self, ref: SnapshotRef) -> None:
        """Begin to make a snapshot durable that was just taken; `collect` says what came of it.

        Its memory is not used for anything else until then.

        Raises:
            RuntimeError: another is being written, or this one is not in memory.
        """
        held = self._memory.get(ref.id)
        if held is None:
            raise RuntimeError(f"{ref.id} is not in memory")
        self.shelf.write(held)

    def collect(self, *, wait: bool = False) -> Written | None:
        """What came of a write, once it is whole; None while there is nothing to tell."""
        written = self.shelf.collect(wait=wait)
        self._memory.settle()
        return written

    def room(self) -> tuple[int, int, int] | None:
        """See `Shelf.room`."""
        return self.shelf.room(self._memory.size_bytes, self._memory.share_bytes(self.num_ranks))

    # ---- what there is --------------------------------------------------------------

    @property
    def is_spread(self) -> bool:
        """Whether each rank writes what it holds."""
        return self._accord.is_spread

    def has_any(self) -> bool:
        """Whether anything durable is there, whole or damaged."""
        found, objections = self.shelf.store.stored()
        return bool(found or objections)

    def in_memory(self) -> list[SnapshotRef]:
        """The snapshots in memory."""
        return self._memory.refs

    def held(self, rollbacks: Sequence[tuple[int, int]]) -> list[SnapshotRef]:
        """The snapshots of the run's lineage, in memory and on disk."""
        in_memory = self._memory.refs
        writing = self.shelf.writing
        if writing is not None and writing.ref not in in_memory:
            in_memory.append(writing.ref)
        known = {ref.id for ref in in_memory}
        refs = in_memory + [ref for ref in self.shelf.refs()[0] if ref.id not in known]
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

    # ---- going back -----------------------------------------------------------------

    def restore(
        self,
        rollbacks: Sequence[tuple[int, int]],
        *,
        snapshot_id: str | None = None,
        at_most_step: int | None = None,
        only: bool = False,
        but: Collection[str] = (),
    ) -> Restored:
        """Restore a snapshot: the one named, else the newest of at most a step.

        One that is missing or damaged is passed over with its reason, down to the last
        good one. From memory it is copied into the live tensors, in place.

        Args:
            rollbacks: see `in_lineage`.
            snapshot_id: the one named.
            at_most_step: how new another may be.
            only: take no other than the one named.
            but: ids that are not tried.

        Raises:
            SnapshotError: none is left.
        """
        on_disk, objections = self.shelf.refs()
        passed_over = list(objections)
        held = [ref for ref in self.held(rollbacks) if ref.id not in but]
        refs = sorted(held, key=lambda ref: (-ref.step, -ref.attempt))
        named = [ref for ref in refs if ref.id == snapshot_id]
        older = [
            ref
            for ref in refs
            if ref.id != snapshot_id and (at_most_step is None or ref.step <= at_most_step)
        ]
        durable = {ref.id for ref in on_disk}
        for ref in named if only else named + older:
            for from_memory in (True, False):
                if not from_memory and ref.id not in durable:
                    continue
                try:
                    found = self._try(ref, from_memory=from_memory)
                except (torch.OutOfMemoryError, RankError):
                    raise  # no fault of the snapshot's
                except (ForeshockError, *DAMAGE) as error:
                    lasting = isinstance(error, DamagedError) and not from_memory
                    passed_over.append(Objection(ref.id, f"{ref.id}: {error}", lasting=lasting))
                    self._memory.discard(ref.id)
                    continue
                if found is not None:
                    return Restored(ref, found.watching, True, tuple(passed_over), found.num_ranks)
        known = [f"{name} is known to be damaged" for name in sorted(self.shelf.bad)]
        detail = "; ".join([*passed_over, *known]) or "there is none"
        raise SnapshotError(f"no snapshot could be restored: {detail}")

    def visit(
        self, refs: Sequence[SnapshotRef], look: Callable[[], Any]
    ) -> list[tuple[SnapshotRef, Any]]:
        """Look at earlier states, one after the other, and come back to the present.

        One that is in memory is taken from there, another from disk; one that is gone or
        damaged is passed over.

        Raises:
            SnapshotError: the present state could not be put back exactly.
        """
        if not refs:
            return []
        present = clone_tree(self._capture())
        expected = checksum(present)
        seen: list[tuple[SnapshotRef, Any]] = []
        try:
            for ref in refs:
                if (training := self._looked_up(ref)) is not None:
                    self._put_back("looking back", training)
                    seen.append((ref, look()))
            return seen
        finally:
            if checksum(self._put_back("coming back", present)) != expected:
                raise SnapshotError("the present state could not be put back after a look back")

    def _looked_up(self, ref: SnapshotRef) -> dict[str, Any] | None:
        held = self._memory.get(ref.id)
        if held is not None:
            return held.training()
        try:
            loaded = self._load(ref.id)
        except (torch.OutOfMemoryError, RankError):
            raise
        except (ForeshockError, *DAMAGE):
            return None
        return dict(sorted((loaded.tree["training"] | loaded.own).items()))

    def rewound_to(self, step: int) -> None:
        """Let go of the states in memory that have been undone."""
        self._memory.drop_after(step)

    def optimizer_is_finite(self, optimizer: torch.optim.Optimizer, buffers: Any = ()) -> bool:
        """Whether all moments are finite, and no buffer of the model holds a NaN; on every rank."""
        return self._accord.everywhere("finite moments", has_finite_state(optimizer, buffers))

    @property
    def _own(self) -> frozenset[str]:
        """Names of the parts of which each rank has its own."""
        return self._pending_own | {name for name, part in self._parts.items() if part.own}

    def _hold(
        self, ref: SnapshotRef, training: dict[str, Any], watching: Any, labels: Sequence[Any]
    ) -> Held:
        """Keep a state in memory, labelled alike on every rank."""
        held = self._memory.put(ref, training, watching, labels, self._own)
        label = self._accord.label(training, held.own, held.checksum)
        held.ref = dataclasses.replace(held.ref, digest=label)
        return held

    def _try(self, ref: SnapshotRef, *, from_memory: bool) -> _Back | None:
        """Restore one snapshot, or None if it is not there."""
        if from_memory:
            held = self._memory.get(ref.id)
            if held is None:
                return None
            live = self._put_back(ref.id, held.training())
            self._equal(ref.id, live, [held.checksum])
            self._label(_labels(held.labels, held.ref))
            return _Back(clone_tree(held.watching), None)
        loaded = self._load(ref.id)
        tree = loaded.tree
        training = dict(sorted((tree["training"] | loaded.own).items()))
        labels = _labels(tree["labels"], ref)
        for name, part in self._parts.items():
            if part.own and not part.any_size and loaded.num_ranks != self.num_ranks:
                raise SnapshotError(
                    f"{name} is each rank's own: it was captured on {loaded.num_ranks} ranks and "
                    f"cannot go on on {self.num_ranks}"
                )
        self._pending_own = frozenset(loaded.own) - self._parts.keys()
        live = self._put_back(ref.id, training)
        for name in loaded.anew:  # made just now, from the first rank's
            training[name] = live[name]
        self._equal(ref.id, live, loaded.digests or [digest(training)])
        watching = clone_tree(tree["watching"])
        if self._num_labels:  # the next look back needs no disk
            self._hold(ref, training, watching, tree["labels"])
        self._label(labels)
        differs = bool(loaded.own) and loaded.num_ranks != self.num_ranks
        return _Back(watching, loaded.num_ranks if differs else None)

    def _load(self, snapshot_id: str) -> Loaded:
        shared = {name: part for name, part in self._parts.items() if not part.own}
        return self.shelf.store.load(snapshot_id, like_live(shared), self._own)

    def _equal(self, name: str, live: dict[str, Any], wanted: Sequence[str]) -> None:
        """Refuse what is live unless it has these digests, on every rank."""
        error: Exception | None = None
        strong = "" if all(is_checksum(one) for one in wanted) else digest(live)
        if any((checksum(live) if is_checksum(one) else strong) != one for one in wanted):
            # Its files are sound: it is the run that does not take its state back exactly.
            error = SnapshotError("the restored state has another digest")
        if (fate := self._accord.fate(f"comparing {name}", error)) is not None:
            raise fate

    def _put_back(self, name: str, training: dict[str, Any]) -> dict[str, Any]:
        """Put a state back on every rank; return what is live then, captured once."""
        error: Exception | None = None
        try:
            for one, part in self._parts.items():
                if one not in training:
                    raise SnapshotError(
                        f"the snapshot does not hold {one!r}, which this run tracks"
                    )
                part.restore(training[one])
        except (ForeshockError, *DAMAGE) as caught:
            error = caught
        if (fate := self._accord.fate(f"restoring {name}", error)) is not None:
            raise fate
        known = set(self._parts)
        self._pending = {
            name: clone_tree(tree) for name, tree in training.items() if name not in known
        }
        return self._capture()

    def _capture(self) -> dict[str, Any]:
        """What is tracked now and what waits for its owner, in an order of their own."""
        captured = {name: part.capture() for name, part in self._parts.items()}
        return dict(sorted((captured | self._pending).items()))

    def _label(self, labels: list[SnapshotRef]) -> None:
        self._labels = labels[-self._num_labels :] if self._num_labels else []


def _labels(before: Iterable[Any], ref: SnapshotRef) -> list[SnapshotRef]:
    return [*(SnapshotRef.from_json(label) for label in before), ref]
