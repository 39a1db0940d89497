"""What one rank does or holds for all: snapshots, generators, probes, the verdict's norm."""

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist

from foreshock.core.errors import ConfigError, SnapshotError
from foreshock.core.probe import Probe
from foreshock.core.reading import from_json_number, json_number
from foreshock.core.retention import Stored
from foreshock.core.snapshot import SnapshotRef
from foreshock.data.stream import Stream
from foreshock.ranks.agreement import Ranks
from foreshock.snapshots.codec import decode, encode
from foreshock.snapshots.disk import DiskStore
from foreshock.snapshots.labels import DamagedError, Objection
from foreshock.snapshots.parts import (
    GlobalRandomPart,
    NumpyGeneratorPart,
    Part,
    PythonRandomPart,
    TorchGeneratorPart,
    clone_tree,
)

RANDOM_PARTS = (TorchGeneratorPart, NumpyGeneratorPart, PythonRandomPart)
"""Parts that every rank has its own of."""


def plain_module(model: torch.nn.Module) -> torch.nn.Module:
    """The module inside of DDP: snapshots and run directories are the same without it."""
    while isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    return model


def check_stream(stream: Any, model: torch.nn.Module, ranks: Ranks) -> None:
    """Refuse a stream whose ranks are not those of the run; collective.

    Raises:
        ConfigError: its rank and world size do not fit, or the ranks' streams are not one.
    """
    if ranks.size == 1 or not isinstance(stream, Stream):
        return  # a loader of each rank's own says nothing of the others'
    said = [stream.rank, stream.world_size, stream.batch_size, stream.order.fingerprint]
    heard = [json.loads(row) for row in ranks.exchange("stream", json.dumps(said).encode())]
    parallel = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    given = f"rank={stream.rank}, world_size={stream.world_size}"
    if parallel and (stream.rank, stream.world_size) != (ranks.rank, ranks.size):
        fit = False
    else:  # model-parallel ranks have the same data
        shares = sorted(one[0] for one in heard)
        times, rest = divmod(ranks.size, stream.world_size)
        fit = not rest and shares == sorted(list(range(stream.world_size)) * times)
    if not fit:
        raise ConfigError(
            f"the Stream of rank {ranks.rank} was made with {given}, and {ranks.size} ranks train: "
            f"give it rank={ranks.rank}, world_size={ranks.size} (or, under model parallelism, "
            "the same share to all that hold one copy of the model)"
        )
    if any(one[1:] != heard[0][1:] for one in heard):
        raise ConfigError(
            "the ranks' Streams differ in world size, batch size, seed or data: build the same "
            "one on every rank, but for `rank`"
        )


def one_norm(own: torch.Tensor) -> torch.Tensor:
    """Make a gradient norm `[]` the same on every rank: the largest of any, NaN where one is.

    So that there is one verdict: after a reduction ranks have the same gradient, but one with
    a damaged memory has not, and would skip alone. One collective of two numbers a step.
    """

    broken = torch.isnan(own)
    both = torch.stack([torch.where(broken, torch.inf, own), broken.to(own.dtype)])
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return torch.where(both[1] > 0, torch.nan, both[0])


class AgreedProbe(Probe):
    """A probe whose values are those of the first rank, so that what follows is the same.

    Every rank measures: a sharded model needs all of them. What they round otherwise is not
    to make them decide otherwise.
    """

    name: ClassVar[str] = "agreed"

    def __init__(self, probe: Probe, ranks: Ranks) -> None:
        self.name = probe.name  # pyright: ignore[reportAttributeAccessIssue]
        self.strengthened_by = probe.strengthened_by  # pyright: ignore[reportAttributeAccessIssue]
        self._probe = probe
        self._ranks = ranks

    @property
    def capability(self) -> str:
        return self._probe.capability

    def measure(self, model: Any) -> list[float]:
        what = f"probe {self._probe.name}"
        values: list[float] = self._ranks.all_or_none(what, lambda: self._probe.measure(model))
        plain = [json_number(float(value)) for value in values]
        return [from_json_number(one) for one in self._ranks.from_first(what, lambda: plain)]

    def exact_share(self, model: Any) -> float | None:
        what = f"share of probe {self._probe.name}"
        share = self._ranks.all_or_none(what, lambda: self._probe.exact_share(model))
        return self._ranks.from_first(what, lambda: share)


class PerRankPart(Part):
    """A part that every rank has its own of, such as a random generator; collective.

    Its tree is the same on every rank: the states of all, in the order of ranks, or the state
    alone where there is one. On fewer ranks than it was captured on, the states of the others
    are carried along; on more, those that are new are seeded by the first one's state and
    their rank.

    Args:
        name: for the meeting.
        part: this rank's.
        ranks: all of them.
        any_size: whether its states go on on another number of ranks.
    """

    def __init__(self, name: str, part: Part, ranks: Ranks, *, any_size: bool = True) -> None:
        self._name = name
        self._part = part
        self._ranks = ranks
        self._any_size = any_size
        self._carried: list[Any] = []
        self._restored: int | None = None

    def capture(self) -> Any:
        own = clone_tree(self._part.capture())
        if self._ranks.size == 1:
            states = [own]
        else:
            rows = self._ranks.exchange(f"state of {self._name}", _packed(own))
            states = [_unpacked(row) for row in rows]
        # Just restored on more ranks: what comes back is what was there, for its digest.
        states, self._restored = states[: self._restored], None
        states += self._carried
        return states[0] if len(states) == 1 else {"ranks": states}

    def restore(self, tree: Any) -> None:
        several = isinstance(tree, dict) and set(tree) == {"ranks"}
        states = list(tree["ranks"]) if several else [tree]
        size, rank = self._ranks.size, self._ranks.rank
        if len(states) != size and not self._any_size:
            raise SnapshotError(
                f"{self._name} is each rank's own: it was captured on {len(states)} ranks and "
                f"cannot go on on {size}"
            )
        self._carried = clone_tree(states[size:])
        self._restored = len(states) if len(states) < size else None
        if rank < len(states):
            self._part.restore(states[rank])
            return
        self._part.restore(states[0])
        if isinstance(self._part, GlobalRandomPart):
            seed = hashlib.blake2b(_packed(states[0]) + rank.to_bytes(8, "little"), digest_size=4)
            _seed_global(int.from_bytes(seed.digest(), "little"))

    def settled(self) -> None:
        """What was restored is not compared with what there was: capture all ranks from now on."""
        self._restored = None


class ModuleOfRanks(Part):
    """A module whose buffers DDP keeps alike: the first rank's count, as at its next forward.

    Args:
        part: of the plain module.
        model: the module as it is trained, wrapped or not.
    """

    def __init__(self, part: Part, model: torch.nn.Module) -> None:
        self._part = part
        self._group: Any = None
        self._buffers: list[torch.Tensor] = []
        if isinstance(model, torch.nn.parallel.DistributedDataParallel) and model.broadcast_buffers:
            self._group = model.process_group
            self._buffers = list(model.module.buffers())

    def capture(self) -> Any:
        for buffer in self._buffers:
            dist.broadcast(buffer.detach(), src=0, group=self._group)
        return self._part.capture()

    def restore(self, tree: Any) -> None:
        self._part.restore(tree)


def _seed_global(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class FirstRankStore:
    """Durable snapshots of replicas: the first rank writes, all read, and all know the same.

    What the first rank finds in the folder is what there is, also where a network file system
    shows another rank something older; from then on each rank keeps count for itself. Every
    method but `stored` is collective.

    Args:
        store: the snapshots as this rank sees them.
        ranks: all of them.
    """

    def __init__(self, store: DiskStore, ranks: Ranks) -> None:
        self._store = store
        self._ranks = ranks

        def look() -> Any:
            stored, objections = store.stored()
            told = [[one.ref.to_json(), one.size_bytes] for one in stored]
            return [told, [[one.id, str(one), one.lasting] for one in objections]]

        told, objections = ranks.from_first("snapshots on disk", look)
        self._stored = [Stored(SnapshotRef.from_json(ref), size) for ref, size in told]
        self._objections = [Objection(*one[:2], lasting=one[2]) for one in objections]

    def write(self, ref: SnapshotRef, tree: Any) -> int:
        """Make a snapshot durable, if every rank holds the same state; return its size.

        Raises:
            RankError: they do not; nothing was written.
            OSError: the first rank's disk is full or fails.
        """
        self._ranks.agree(f"snapshot {ref.id}", {"the state": ref.digest})
        what = f"writing snapshot {ref.id}"
        size = self._ranks.from_first(what, lambda: self._store.write(ref, tree))
        others = [one for one in self._stored if one.ref.id != ref.id]
        self._stored = sorted(
            [*others, Stored(ref, size)], key=lambda one: (one.ref.step, one.ref.attempt)
        )
        return size

    def stored(self, but: Iterable[str] = ()) -> tuple[list[Stored], list[Objection]]:
        """The labels and sizes of all readable snapshots, and why others were passed over."""
        gone = set(but)
        objections = [one for one in self._objections if one.id not in gone]
        return [one for one in self._stored if one.ref.id not in gone], objections

    def read(self, snapshot_id: str) -> Any:
        """Read a snapshot on every rank, verifying every byte.

        Raises:
            DamagedError: its files are damaged, as the first rank reads them.
            SnapshotError: it cannot be read, on this rank or on another.
        """
        tree, kind, text = None, "", ""
        try:
            tree = self._store.read(snapshot_id)
        except SnapshotError as error:
            kind, text = type(error).__name__, str(error)
        told = json.dumps([kind, text]).encode()
        heard = [json.loads(row) for row in self._ranks.exchange(f"reading {snapshot_id}", told)]
        failed = [(rank, *one) for rank, one in enumerate(heard) if one[0]]
        if failed:  # the same on every rank, since all act on it
            rank, kind, text = failed[0]
            lasting = rank == 0 and kind == DamagedError.__name__
            raise (DamagedError if lasting else SnapshotError)(f"{text} (on rank {rank})")
        return tree

    def remove_all(self, snapshot_ids: Sequence[str]) -> None:
        """Remove several snapshots; one that is gone already is fine."""
        names = set(snapshot_ids)
        self._stored = [one for one in self._stored if one.ref.id not in names]
        self._objections = [one for one in self._objections if one.id not in names]
        self._ranks.from_first(
            "removing snapshots", lambda: self._store.remove_all(list(snapshot_ids))
        )

    def free_bytes(self) -> int:
        """Bytes that the first rank's disk has room for."""
        return self._ranks.from_first("free bytes", self._store.free_bytes)


def agreed_probes(probes: Sequence[Probe], ranks: Ranks) -> tuple[Probe, ...]:
    """The probes as all ranks measure them."""
    if ranks.size == 1:
        return tuple(probes)
    return tuple(AgreedProbe(probe, ranks) for probe in probes)


def _packed(tree: Any) -> bytes:
    structure, tensors = encode(tree, share=False)
    head = json.dumps(structure).encode()
    body = safetensors.torch.save({name: one.contiguous() for name, one in tensors.items()})
    return len(head).to_bytes(8, "little") + head + body


def _unpacked(data: bytes) -> Any:
    size = 8 + int.from_bytes(data[:8], "little")
    return decode(json.loads(data[8:size]), safetensors.torch.load(data[size:]))
