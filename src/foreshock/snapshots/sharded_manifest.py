"""The manifest of a sharded snapshot: its label, its structure, and which rank wrote what.

Whatever stands in one is checked before anything is done with it: every name of a file is
the one it must be, every tensor is covered by its chunks exactly once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import SnapshotRef
from foreshock.durable import Disk
from foreshock.snapshots.damage import DAMAGE, DamagedError, blake2b
from foreshock.snapshots.sharded_sealed import (
    FORMAT,
    MANIFEST,
    checked_id,
    contents_name,
    hexadecimal,
    mapping,
    read_sealed,
    seal,
    shard_name,
    whole,
    wholes,
)
from foreshock.snapshots.sharded_state import Described, names_in, state_digest
from foreshock.snapshots.tensor_file import CODES, DTYPES

MAX_RANKS = 1 << 17
_FIELDS = frozenset(
    {"format", "snapshot", "world_size", "structure", "tensors", "chunks", "ties", "files"}
)


class Chunk(NamedTuple):
    """A box of a tensor, and the rank whose file holds it."""

    rank: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class FileFacts(NamedTuple):
    """Size of a file in bytes and its digest.

    Of a sealed JSON file it is BLAKE2b of its bytes; of a shard file BLAKE2b of its header
    and then of the BLAKE2b of each tensor's bytes, so that a part can be verified alone.
    """

    size_bytes: int
    blake2b: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What all ranks need to know of a snapshot.

    Attributes:
        ref: its label.
        world_size: number of ranks that wrote it.
        structure: the state's tree, see `ShardedState`.
        tensors: every tensor by name.
        chunks: where each is; none for one without elements or a tied one.
        ties: names of tensors that are the same memory as another, and its name.
        files: every file by name.
    """

    ref: SnapshotRef
    world_size: int
    structure: Any
    tensors: dict[str, Described]
    chunks: dict[str, tuple[Chunk, ...]]
    ties: dict[str, str]
    files: dict[str, FileFacts]

    def to_bytes(self) -> bytes:
        """The file."""
        return seal(
            {
                "format": FORMAT,
                "snapshot": self.ref.to_json(),
                "world_size": self.world_size,
                "structure": self.structure,
                "tensors": {
                    name: [CODES[one.dtype], list(one.shape), one.digest]
                    for name, one in self.tensors.items()
                },
                "chunks": {
                    name: [[one.rank, list(one.offsets), list(one.sizes)] for one in chunks]
                    for name, chunks in self.chunks.items()
                },
                "ties": self.ties,
                "files": {name: list(facts) for name, facts in self.files.items()},
            }
        )

    @cached_property
    def by_rank(self) -> dict[int, list[tuple[str, Chunk]]]:
        """Name and chunk of what each rank's file holds."""
        found: dict[int, list[tuple[str, Chunk]]] = {}
        for name, chunks in self.chunks.items():
            for chunk in chunks:
                found.setdefault(chunk.rank, []).append((name, chunk))
        return found

    def stored_as(self, name: str) -> str:
        """The name under which a tensor's chunks are."""
        return self.ties.get(name, name)


def read_manifest(disk: Disk, folder: Path, snapshot_id: str) -> tuple[Manifest, str]:
    """A snapshot's manifest, checked, and the digest of its bytes.

    Raises:
        DamagedError: it is missing, damaged, or contradicts itself.
        SnapshotError: it cannot be read, or is of another format.
    """
    path = folder / checked_id(snapshot_id)
    if path.is_symlink():
        raise SnapshotError(f"snapshot {snapshot_id} is a symbolic link")
    body, data = read_sealed(disk, path / MANIFEST, snapshot_id=snapshot_id)
    if isinstance(body, dict) and body.get("format") != FORMAT:
        raise SnapshotError(
            f"snapshot {snapshot_id} has format {body.get('format')!r:.40}, where {FORMAT!r} is "
            "read here"
        )
    try:
        return _manifest(body, snapshot_id), blake2b([data])
    except (SnapshotError, *DAMAGE) as error:
        raise DamagedError(
            f"snapshot {snapshot_id}: {MANIFEST} is damaged: {error!s:.300}"
        ) from error


def gap_or_overlap(shape: Sequence[int], chunks: Sequence[Chunk]) -> str:
    """Why the chunks do not cover a tensor exactly once; empty if they do.

    They have to be cells of a grid, which every layout by mesh dimensions is: then a look at
    each suffices.
    """
    if not math.prod(shape):
        return "chunks of a tensor without elements" if chunks else ""
    if not chunks:
        return "no chunk"
    for one in chunks:
        if not len(one.offsets) == len(one.sizes) == len(shape):
            return f"a chunk at {one.offsets} with another number of dimensions"
    edges = [sorted({one.offsets[axis] for one in chunks}) for axis in range(len(shape))]
    following = [
        dict(zip(starts, [*starts[1:], size], strict=True))
        for starts, size in zip(edges, shape, strict=True)
    ]
    for one in chunks:
        for axis, (start, size) in enumerate(zip(one.offsets, one.sizes, strict=True)):
            if size < 1 or start + size != following[axis][start]:
                return f"a chunk at {one.offsets} of sizes {one.sizes} that overlaps or leaves gaps"
    if any(starts[0] for starts in edges):
        return "no chunk at its beginning"
    num_cells = math.prod(len(starts) for starts in edges)
    distinct = {one.offsets for one in chunks}
    if len(distinct) < len(chunks):
        return "two chunks at one place"
    return "" if len(distinct) == num_cells else f"{len(distinct)} of {num_cells} chunks"


def _manifest(body: Any, snapshot_id: str) -> Manifest:
    fields = mapping(body, _FIELDS)
    world = whole(fields["world_size"], MAX_RANKS)
    tensors = {name: _described(one) for name, one in mapping(fields["tensors"]).items()}
    found = Manifest(
        ref=SnapshotRef.from_json(mapping(fields["snapshot"])),
        world_size=world,
        structure=fields["structure"],
        tensors=tensors,
        chunks={
            name: tuple(_chunk(one, world) for one in chunks)
            for name, chunks in mapping(fields["chunks"]).items()
        },
        ties=mapping(fields["ties"]),
        files=_files(fields["files"], world),
    )
    if found.ref.id != snapshot_id:
        raise ValueError(f"its label is that of {found.ref.id!r:.80}")
    if sorted(names_in(found.structure)) != sorted(tensors):
        raise ValueError("its structure has other tensors than those it lists")
    _check_ties(found)
    if found.chunks.keys() != tensors.keys() - found.ties.keys():
        raise ValueError("other tensors have chunks than those it lists")
    for name, chunks in found.chunks.items():
        if reason := gap_or_overlap(tensors[name].shape, chunks):
            raise ValueError(f"{name!r:.200} has {reason}")
    if state_digest(found.structure, tensors) != found.ref.digest:
        raise ValueError("the digest of the state is not that of its tensors and structure")
    return found


def _check_ties(manifest: Manifest) -> None:
    tensors: Mapping[str, Described] = manifest.tensors
    for name, other in manifest.ties.items():
        if type(other) is not str or other in manifest.ties:
            raise ValueError(f"{name!r:.80} is tied to {other!r:.80}")
        if name not in tensors or tensors.get(other) != tensors[name]:
            raise ValueError(f"{name!r:.80} is tied to another tensor than it is")


def _described(value: Any) -> Described:
    code, shape, digest = value
    found = Described(DTYPES[code], wholes(shape), hexadecimal(digest))
    whole(math.prod(found.shape))
    return found


def _chunk(value: Any, world: int) -> Chunk:
    rank, offsets, sizes = value
    return Chunk(whole(rank, world), wholes(offsets), wholes(sizes))


def _files(value: Any, world: int) -> dict[str, FileFacts]:
    given = mapping(value)
    if len(given) != 2 * world:
        raise ValueError(f"it lists {len(given)} files of {world} ranks")
    wanted = [name(rank) for rank in range(world) for name in (shard_name, contents_name)]
    files: dict[str, FileFacts] = {}
    for name in wanted:
        if name not in given:
            raise ValueError(f"it does not list {name}")
        size, digest = given[name]
        files[name] = FileFacts(whole(size), hexadecimal(digest))
    return files
