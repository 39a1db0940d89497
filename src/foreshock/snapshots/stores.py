"""What a run asks of the place where its durable snapshots are, on one rank or on all."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from foreshock.core.retention import Stored
from foreshock.core.snapshot import SnapshotRef
from foreshock.snapshots.labels import Objection
from foreshock.snapshots.memory import Held
from foreshock.snapshots.writer import Written

Like = Callable[[str, tuple[int, ...]], torch.Tensor | None]
"""The live tensor which one of this name (a path, see `sharded_state`) and shape is laid out
like; None where every rank holds all of it."""


class Loaded(NamedTuple):
    """A snapshot as this rank takes it back.

    Attributes:
        tree: `training`, `watching` and `labels`; DTensors where the run has them.
        own: what this rank has of its own, by the name of the part; it belongs into `training`.
        anew: names of those of `own` that no rank of this number wrote: they are the first
            rank's, for the part to make its own from.
        num_ranks: how many ranks wrote it.
        digests: what the live state must have when it is restored, each by `checksum` or by
            `codec.digest`; none where those of `tree` and `own` are to be taken.
    """

    tree: dict[str, Any]
    own: dict[str, Any]
    anew: tuple[str, ...]
    num_ranks: int
    digests: tuple[str, ...]


class Store(Protocol):
    """Where durable snapshots are: a `DiskStore`, or what ranks have in its place.

    On several ranks all but `save` and `remove_all` may be meetings: every rank calls them, at
    the same place of the run.
    """

    shared: bool
    """Whether several ranks have it together."""

    def begin(self, ref: SnapshotRef) -> None:
        """What must hold on all ranks before a snapshot is written."""
        ...

    def save(self, held: Held) -> int:
        """Write a snapshot; its size. Also from a thread, one at a time."""
        ...

    def ended(self, ref: SnapshotRef, written: Written | None) -> Written | None:
        """What came of a write on all ranks, from what came of it here; None if it goes on."""
        ...

    def stored(self, but: Iterable[str] = ()) -> tuple[list[Stored], list[Objection]]:
        """Labels and sizes of all that can be read, and why others were passed over."""
        ...

    def load(self, snapshot_id: str, like: Like, own: frozenset[str]) -> Loaded:
        """Read a snapshot, every byte verified; `own` are names of parts, see `Part`."""
        ...

    def remove_all(self, snapshot_ids: Sequence[str]) -> None:
        """Remove several; one that is gone already is fine. Also from a thread."""
        ...

    def free_bytes(self) -> int:
        """Bytes that there is room for."""
        ...

    def total_bytes(self, held_bytes: int, share_bytes: int) -> int:
        """Size of a state of which this rank holds so much; its share of what all hold once."""
        ...
