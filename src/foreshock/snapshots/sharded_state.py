"""A state tree as the ranks hold it: its structure, and each rank's part of every tensor.

A tensor's name is its path in the tree. The digest of the state does not depend on how
it is laid out over ranks: those of the parts add up to that of the whole tensor.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from foreshock.core.errors import ConfigError, SnapshotError
from foreshock.ranks.digest import digests
from foreshock.ranks.placement import LocalPart, local_part
from foreshock.snapshots.codec import encode
from foreshock.snapshots.damage import DAMAGE, blake2b
from foreshock.snapshots.sharded_agreement import UnlikeRanksError

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class ShardedState:
    """What one rank holds of a state tree.

    Attributes:
        structure: the tree as strict JSON (see `codec`), with names in the place of tensors.
        tensors: each tensor by name, detached; writing to it writes to the tree's.
        parts: what this rank holds of each.
        ties: names of tensors that are the same memory as an earlier one, and its name. What
            this rank sees: an empty shard may tell less than the others.
    """

    structure: Any
    tensors: dict[str, torch.Tensor]
    parts: dict[str, LocalPart]
    ties: dict[str, str]


class Described(NamedTuple):
    """A whole tensor, as every rank describes it.

    Attributes:
        dtype: of its elements.
        shape: of the whole.
        digest: its two 64-bit digests in hexadecimal, see `ranks.digest`.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    digest: str


def sharded_state(tree: Any) -> ShardedState:
    """Take a state tree apart; starts no collective and copies no tensor.

    Raises:
        SnapshotError: the tree holds what a snapshot cannot, with its place.
    """
    names: dict[str, str] = {}
    try:
        structure, numbered = encode(tree, share=False)
        renamed = _renamed(structure, "", names)
    except DAMAGE as error:
        raise SnapshotError(f"the state holds a tensor that no file can: {error:.200}") from error
    tensors = {name: numbered[number] for name, number in names.items()}
    parts = {name: local_part(tensor) for name, tensor in tensors.items()}
    for name, part in parts.items():
        if part.partial:
            raise SnapshotError(f"{name} is a Partial DTensor, a summand of no value of its own")
    return ShardedState(structure=renamed, tensors=tensors, parts=parts, ties=_ties(parts))


def staged(state: ShardedState, into: ShardedState | None = None) -> ShardedState:
    """An independent copy on the CPU, to be written while training goes on.

    Args:
        state: what to copy.
        into: an earlier copy whose memory may be used again; it is no state any more.
    """
    held = into.parts if into is not None else {}
    parts: dict[str, LocalPart] = {}
    for name, part in state.parts.items():
        if name in state.ties:
            parts[name] = part._replace(tensor=parts[state.ties[name]].tensor)
            continue
        given = part.tensor
        room = held[name].tensor if name in held and name not in (into or state).ties else None
        if room is None or (room.shape, room.dtype) != (given.shape, given.dtype):
            room = torch.empty(
                given.shape, dtype=given.dtype, device=CPU, pin_memory=given.device.type == "cuda"
            )
        parts[name] = part._replace(tensor=room.copy_(given))
    tensors = {name: part.tensor for name, part in parts.items()}
    return ShardedState(structure=state.structure, tensors=tensors, parts=parts, ties=state.ties)


def digest_table(state: ShardedState) -> torch.Tensor:
    """Place and digests of this rank's parts, by sorted name: `[P, 3]` int64 on the CPU.

    The first column tells apart parts at other places of a tensor; 0 for an empty one.
    """
    parts = [state.parts[name] for name in sorted(state.parts)]
    try:
        found = digests(parts, CPU)
    except ConfigError as error:
        raise SnapshotError(f"the state cannot be digested: {error}") from error
    places = torch.tensor([_place(part) for part in parts], dtype=torch.int64)
    return torch.cat([places[:, None], found], dim=1)


def whole_digests(
    state: ShardedState, table: torch.Tensor, ranks: Sequence[int]
) -> dict[str, Described]:
    """Describe each whole tensor from the tables of all ranks.

    Args:
        state: what this rank holds.
        table: `[W, P, 3]`, a `digest_table` of each rank.
        ranks: their numbers, for messages.

    Raises:
        UnlikeRanksError: ranks that hold the same part of a tensor hold other values; it names
            tensor and ranks.
    """
    names = sorted(state.parts)
    rows = table.tolist()
    found: dict[str, Described] = {}
    for column, name in enumerate(names):
        holders: dict[int, dict[tuple[int, int], list[int]]] = {}
        for rank, row in zip(ranks, rows, strict=True):
            place, first, second = row[column]
            if place:
                holders.setdefault(place, {}).setdefault((first, second), []).append(rank)
        for classes in holders.values():
            if len(classes) > 1:
                raise UnlikeRanksError(
                    f"{name} is not the same on the ranks that hold the same part of it: "
                    f"{' against '.join(map(str, classes.values()))}; what each rank has of its "
                    "own belongs into its rank state"
                )
        sums = [next(iter(classes)) for classes in holders.values()]
        pair = [sum(one[at] for one in sums) % (1 << 64) for at in (0, 1)]
        part = state.parts[name]
        found[name] = Described(
            part.tensor.dtype, tuple(part.shape), f"{pair[0]:016x}{pair[1]:016x}"
        )
    return found


def state_digest(structure: Any, described: dict[str, Described]) -> str:
    """Digest of the logical state: the same for every world size and layout.

    BLAKE2b, 128 bits in hexadecimal, over the structure (keys of dicts sorted) and each whole
    tensor's name, dtype, shape and digest.
    """
    tensors = [
        [name, str(one.dtype), list(one.shape), one.digest]
        for name, one in sorted(described.items())
    ]
    text = json.dumps([_sorted(structure), tensors], sort_keys=True)
    return blake2b([text.encode()])


def names_in(structure: Any) -> Iterator[str]:
    """The name of each tensor in a structure, in order."""
    ((kind, content),) = structure.items()
    match kind:
        case "t" | "c":
            yield content
        case "n":
            yield content[0]
        case "l" | "u":
            for one in content:
                yield from names_in(one)
        case "d":
            for _, value in content:
                yield from names_in(value)
        case _:
            pass


def outline(state: ShardedState) -> list[Any]:
    """What must be the same on every rank: `[structure, [name, dtype, shape], ...]`, as JSON."""
    rows = [[name, str(part.tensor.dtype), list(part.shape)] for name, part in state.parts.items()]
    return [_sorted(state.structure), sorted(rows)]


def _renamed(node: Any, path: str, names: dict[str, str]) -> Any:
    """The structure with paths for numbers; `names` gathers the number of each path."""
    ((kind, content),) = node.items()
    match kind:
        case "t" | "c":
            return {kind: _named(content, path, names)}
        case "n":
            return {kind: [_named(content[0], path, names), content[1]]}
        case "l" | "u":
            return {kind: [_renamed(one, f"{path}/{i}", names) for i, one in enumerate(content)]}
        case "d":
            return {
                kind: [[key, _renamed(value, path_of(path, key), names)] for key, value in content]
            }
        case _:
            return node


def _named(number: str, path: str, names: dict[str, str]) -> str:
    name = path or "/"
    while name in names:  # the keys 1 and "1", say
        name += "'"
    names[name] = number
    return name


def path_of(path: str, key: Any) -> str:
    """Where the value of a dict's encoded key is, in a dict at `path`."""
    ((_, content),) = key.items()
    return f"{path}/{str(content).replace('~', '~0').replace('/', '~1')}"


def keys_of(name: str) -> list[str]:
    """The keys on the way to a tensor of this name.

    >>> keys_of("/model/state/a~1b")
    ['model', 'state', 'a/b']
    """
    return [one.replace("~1", "/").replace("~0", "~") for one in name.split("/")[1:]]


def _sorted(node: Any) -> Any:
    ((kind, content),) = node.items()
    if kind in ("l", "u"):
        return {kind: [_sorted(one) for one in content]}
    if kind == "d":
        pairs = [[key, _sorted(value)] for key, value in content]
        return {kind: sorted(pairs, key=lambda pair: json.dumps(pair[0]))}
    return node


def _ties(parts: dict[str, LocalPart]) -> dict[str, str]:
    seen: dict[tuple[Any, ...], str] = {}
    ties: dict[str, str] = {}
    for name, part in parts.items():
        tensor = part.tensor
        where = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.stride())
        identity = (*where, tensor.dtype, tuple(tensor.shape), part.offset, part.shape)
        first = seen.setdefault(identity, name)
        if first != name:
            ties[name] = first
    return ties


def _place(part: LocalPart) -> int:
    if not part.tensor.numel():
        return 0
    text = json.dumps([part.offset, list(part.tensor.shape)]).encode()
    found = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)
    return found or 1
