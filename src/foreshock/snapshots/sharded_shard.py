"""The files of one rank: its tensors as safetensors, and what is in them as sealed JSON.

The table of contents has a digest for every tensor, so that a reader verifies what it uses
without reading the rest, and each of its bytes before it gets anywhere.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from foreshock.core.errors import SnapshotError
from foreshock.durable import Chunk as Bytes
from foreshock.durable import Disk
from foreshock.snapshots.codec import Tensors, decode, encode, tensor_bytes
from foreshock.snapshots.damage import DAMAGE, DamagedError, blake2b
from foreshock.snapshots.sharded_manifest import FileFacts, Manifest
from foreshock.snapshots.sharded_sealed import (
    FORMAT,
    chunk_key,
    contents_name,
    hexadecimal,
    mapping,
    read_sealed,
    seal,
    shard_name,
    whole,
    wholes,
)
from foreshock.snapshots.tensor_file import CODES, DTYPES, MAX_HEADER_BYTES, header_of

_OWN = "rank_state:"
_MAX_OWN_BYTES = 1 << 30
_BLOCK_BYTES = 1 << 20
_FIELDS = frozenset(
    {"format", "snapshot", "rank", "world_size", "header_bytes", "tensors", "rank_state"}
)


class Entry(NamedTuple):
    """A tensor in a shard file: its bytes begin `begin` after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    blake2b: str

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is in a rank's shard file, in the order of the file, and the rank's own state."""

    header_bytes: int
    entries: dict[str, Entry]
    rank_state: Any


def write_shard(
    disk: Disk,
    folder: Path,
    *,
    snapshot_id: str,
    rank: int,
    world_size: int,
    chunks: Mapping[str, torch.Tensor],
    rank_state: Any,
) -> dict[str, FileFacts]:
    """Write and sync both files of a rank; returns their facts. Copies one tensor at a time.

    Args:
        disk: what is written through.
        folder: where.
        snapshot_id: the snapshot's id.
        rank: place of this rank in the group.
        world_size: ranks of the group.
        chunks: tensors on any device, by `chunk_key`.
        rank_state: a state tree of this rank's own.

    Raises:
        SnapshotError: the rank's own state holds what a snapshot cannot.
        OSError: the disk is full or fails.
    """
    structure, own = encode(rank_state)
    if sum(one.numel() * one.element_size() for one in own.values()) > _MAX_OWN_BYTES:
        raise SnapshotError(
            f"the state of rank {rank} alone is over {_MAX_OWN_BYTES} bytes; what is large belongs "
            "into the state that all ranks share"
        )
    named = {**chunks, **{_OWN + name: tensor for name, tensor in own.items()}}
    for name, tensor in named.items():
        if tensor.dtype not in CODES:
            raise SnapshotError(f"{name} is of {tensor.dtype}, which no shard file can hold")
    ordered = dict(sorted(named.items(), key=lambda one: (-one[1].dtype.itemsize, one[0])))
    header = header_of(ordered.items())
    digests: dict[str, str] = {}

    def pieces() -> Iterator[Bytes]:
        yield header
        for name, tensor in ordered.items():
            data = tensor_bytes(tensor)
            digests[name] = blake2b([data])
            yield data

    shard, contents = folder / shard_name(rank), folder / contents_name(rank)
    disk.write(shard, pieces())
    disk.sync(shard)
    entries: dict[str, list[Any]] = {}
    begin = 0
    for name, tensor in ordered.items():
        entries[name] = [CODES[tensor.dtype], list(tensor.shape), begin, digests[name]]
        begin += tensor.numel() * tensor.element_size()
    data = seal(
        {
            "format": FORMAT,
            "snapshot": snapshot_id,
            "rank": rank,
            "world_size": world_size,
            "header_bytes": len(header),
            "tensors": entries,
            "rank_state": structure,
        }
    )
    disk.write(contents, [data])
    disk.sync(contents)
    disk.sync_dir(folder)
    return {
        shard.name: FileFacts(len(header) + begin, _of_shard(header, digests)),
        contents.name: FileFacts(len(data), blake2b([data])),
    }


class ShardReader:
    """Reads the files of one rank of a snapshot; nothing is handed out unverified.

    Args:
        disk: what is read from.
        folder: that of all snapshots.
        manifest: of the snapshot.
        rank: the rank that wrote the files.

    Raises:
        DamagedError: the table of contents is missing, damaged, or not what the manifest says.
        SnapshotError: the disk does not give it; so too below.
    """

    def __init__(self, disk: Disk, folder: Path, manifest: Manifest, rank: int) -> None:
        self._disk = disk
        self._id = manifest.ref.id
        self._path = folder / self._id / shard_name(rank)
        self._facts = manifest.files[self._path.name]
        path = self._path.with_name(contents_name(rank))
        body, data = read_sealed(disk, path, snapshot_id=self._id)
        if (len(data), blake2b([data])) != manifest.files[path.name]:
            raise DamagedError(f"snapshot {self._id}: {path.name} is not the one of its manifest")
        try:
            self.contents = _contents(body, manifest, rank)
        except DAMAGE as error:
            raise DamagedError(
                f"snapshot {self._id}: {path.name} is damaged: {error!s:.300}"
            ) from error

    def verify(self) -> None:
        """Read the whole file, a block at a time, and compare every digest.

        Raises:
            DamagedError: it is missing or damaged.
        """
        with self._open() as file:
            header = self._exactly(file, self.contents.header_bytes)
            for name, entry in self.contents.entries.items():
                found = self._digest(file, entry.size_bytes)
                if found != entry.blake2b:
                    raise self._damaged(f"{name} does not match its digest")
            digests = {name: entry.blake2b for name, entry in self.contents.entries.items()}
            if _of_shard(header, digests) != self._facts.blake2b:
                raise self._damaged("its header does not match its digest")

    def read(self, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """These tensors, each verified, on the CPU; one at a time is in memory.

        Raises:
            DamagedError: one is missing or damaged.
        """
        entries = self.contents.entries
        with self._open() as file:
            for name in sorted(names, key=lambda one: entries[one].begin):
                entry = entries[name]
                file.seek(self.contents.header_bytes + entry.begin)
                data = self._exactly(file, entry.size_bytes)
                if blake2b([data]) != entry.blake2b:
                    raise self._damaged(f"{name} does not match its digest")
                yield name, _tensor(data, entry)

    def rank_state(self) -> Any:
        """The rank's own state.

        Raises:
            DamagedError: it is damaged.
        """
        names = [name for name in self.contents.entries if name.startswith(_OWN)]
        tensors: Tensors = {name[len(_OWN) :]: tensor for name, tensor in self.read(names)}
        try:
            return decode(self.contents.rank_state, tensors)
        except SnapshotError as error:
            raise DamagedError(f"snapshot {self._id}: {error}") from error

    def _open(self) -> BinaryIO:
        try:
            size = self._disk.size(self._path)
            if size != self._facts.size_bytes:
                raise self._damaged(f"{size} bytes instead of {self._facts.size_bytes}")
            return self._disk.open(self._path)
        except OSError as error:
            raise self._unreadable(error) from error

    def _exactly(self, file: BinaryIO, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        try:
            while rest:
                done = file.readinto(rest[: 1 << 30])  # pyright: ignore[reportAttributeAccessIssue]
                if not done:
                    raise self._damaged("it ends too early")
                rest = rest[done:]
        except OSError as error:
            raise self._unreadable(error) from error
        return data

    def _digest(self, file: BinaryIO, size: int) -> str:
        starts = range(0, size, _BLOCK_BYTES)
        return blake2b(self._exactly(file, min(_BLOCK_BYTES, size - start)) for start in starts)

    def _damaged(self, reason: str) -> DamagedError:
        return DamagedError(f"snapshot {self._id}: {self._path.name} is damaged: {reason:.300}")

    def _unreadable(self, error: OSError) -> SnapshotError:
        kind = DamagedError if isinstance(error, FileNotFoundError) else SnapshotError
        return kind(
            f"snapshot {self._id}: {self._path.name} cannot be read: {error.strerror or error}"
        )


def _of_shard(header: bytes | bytearray, digests: Mapping[str, str]) -> str:
    return blake2b([header, *(digest.encode() for digest in digests.values())])


def _tensor(data: bytearray, entry: Entry) -> torch.Tensor:
    if not data:
        return torch.empty(entry.shape, dtype=entry.dtype)
    return torch.frombuffer(data, dtype=entry.dtype).reshape(entry.shape)


def _contents(body: Any, manifest: Manifest, rank: int) -> Contents:
    fields = mapping(body, _FIELDS)
    label = (fields["format"], fields["snapshot"], fields["rank"], fields["world_size"])
    if label != (FORMAT, manifest.ref.id, rank, manifest.world_size):
        raise ValueError(f"its label is {label!r:.120}")
    entries: dict[str, Entry] = {}
    begin = own = 0
    for name, (code, shape, start, digest) in mapping(fields["tensors"]).items():
        entry = Entry(DTYPES[code], wholes(shape), whole(start), hexadecimal(digest))
        if entry.begin != begin:
            raise ValueError(f"{name!r:.80} does not begin where the one before it ends")
        begin += entry.size_bytes
        own += entry.size_bytes if name.startswith(_OWN) else 0
        entries[name] = entry
    header = whole(fields["header_bytes"], MAX_HEADER_BYTES)
    if header + begin != manifest.files[shard_name(rank)].size_bytes or own > _MAX_OWN_BYTES:
        raise ValueError("its tensors are not of the size of its file")
    wanted = {
        chunk_key(name, chunk.offsets): (manifest.tensors[name].dtype, chunk.sizes)
        for name, chunk in manifest.by_rank.get(rank, [])
    }
    found = {
        name: (entry.dtype, entry.shape)
        for name, entry in entries.items()
        if not name.startswith(_OWN)
    }
    if found != wanted:
        raise ValueError("it lists other tensors than the manifest")
    return Contents(header_bytes=header, entries=entries, rank_state=fields["rank_state"])
