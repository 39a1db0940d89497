"""What one rank does or holds for all: generators, buffers, probes, the verdict's norm."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, ClassVar

import safetensors.torch
import torch
import torch.distributed as dist

from foreshock.core.errors import ConfigError, SnapshotError
from foreshock.core.probe import Probe
from foreshock.core.reading import from_json_number, json_number
from foreshock.data.stream import Stream
from foreshock.ranks.agreement import Ranks
from foreshock.run_state import RunState
from foreshock.snapshots.codec import decode, encode
from foreshock.snapshots.parts import (
    NumpyGeneratorPart,
    Part,
    PythonRandomPart,
    TorchGeneratorPart,
    clone_tree,
    part_for,
)

RANDOM_PARTS = (TorchGeneratorPart, NumpyGeneratorPart, PythonRandomPart)
"""Parts that every rank has its own of."""


def plain_module(model: torch.nn.Module) -> torch.nn.Module:
    """The module inside of DDP and of torch.compile.

    Snapshots and run directories are the same without them.
    """
    model = uncompiled(model)
    while isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = uncompiled(model.module)
    return model


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """What `torch.compile` was given, if it made this module."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, torch.nn.Module) else model


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
    are carried along. On more, those that are new make theirs from the first one's state and
    their rank, where it is a generator; else they have the first one's.

    Where each rank writes what it holds, its tree is this rank's state alone, and nothing is
    carried along.

    Args:
        name: for the meeting.
        part: this rank's.
        ranks: all of them.
        any_size: whether its states go on on another number of ranks.
        own: whether each rank writes what it holds.
    """

    def __init__(
        self,
        name: str,
        part: Part,
        ranks: Ranks,
        *,
        any_size: bool = True,
        own: bool = False,
    ) -> None:
        self.own = own
        self._name = name
        self._part = part
        self._ranks = ranks
        self.any_size = any_size
        self._carried: list[Any] = []
        self._restored: int | None = None

    def capture(self) -> Any:
        own = clone_tree(self._part.capture())
        if self.own:
            return own
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
        if self.own and not several:
            self._part.restore(tree)
            return
        states = list(tree["ranks"]) if several else [tree]
        size, rank = self._ranks.size, self._ranks.rank
        if len(states) != size and not self.any_size:
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
        seed = hashlib.blake2b(_packed(states[0]) + rank.to_bytes(8, "little"), digest_size=4)
        self._part.reseed(int.from_bytes(seed.digest(), "little"))

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


def track(
    state: RunState, ranks: Ranks, name: str, thing: Any, *, per_rank: bool | None = None
) -> None:
    """Rewind further state with the run; see `Guard.track`."""
    part = part_for(name, thing)
    if per_rank or (per_rank is None and isinstance(part, RANDOM_PARTS)):
        own = PerRankPart(name, part, ranks, own=state.is_spread)
        state.add(f"tracked.{name}", own)
        own.settled()
    else:
        state.add(f"tracked.{name}", part)
