"""Durable snapshots: a folder each, whole or absent, verified when read, run by nobody.

snapshots/00000120-a00001/
  tensors.safetensors  every tensor by name
  manifest.json        label, structure, and the digest of every file
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from foreshock.core.errors import SnapshotError
from foreshock.core.retention import Stored
from foreshock.core.snapshot import SnapshotRef
from foreshock.durable import Disk, write_dir
from foreshock.snapshots.codec import DAMAGE, decode, encode
from foreshock.snapshots.labels import (
    FORMAT,
    MANIFEST,
    DamagedError,
    Labels,
    Objection,
    blake2b,
    canonical,
)
from foreshock.snapshots.tensor_file import chunks, read

_TENSORS = "tensors.safetensors"


class DiskStore:
    """The snapshots of one run directory.

    Args:
        disk: what everything is written through.
        folder: the `snapshots` folder.

    A snapshot appears whole or not at all. Writing raises `OSError` when the disk does:
    the caller decides to train on. Writing and reading may go on in two threads at a time,
    where the disk may.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._labels = Labels(disk, folder)

    def write(self, ref: SnapshotRef, tree: Any) -> int:
        """Make a snapshot durable; return its size in bytes.

        Tensors go to the disk from where they are, one after the other, without a second
        copy of the state in memory.

        Raises:
            SnapshotError: the state holds what a snapshot cannot.
            OSError: the disk is full or fails; nothing half-written stays.
        """
        structure, tensors = encode(tree)
        flat = {name: tensor.contiguous() for name, tensor in tensors.items()}
        pieces = chunks(flat)
        sink = hashlib.blake2b(digest_size=16)
        size = 0

        def data() -> Iterator[bytes | memoryview]:
            nonlocal size
            for piece in pieces:
                sink.update(piece)
                size += len(piece)
                yield piece

        def manifest() -> Iterator[bytes]:  # asked for once the tensors are written
            nonlocal size
            body = {
                "format": FORMAT,
                "snapshot": ref.to_json(),
                "structure": structure,
                "files": {_TENSORS: {"size_bytes": size, "blake2b": sink.hexdigest()}},
            }
            text = canonical(body)
            whole = canonical({"blake2b": blake2b([text.encode()]), "body": body}).encode()
            size += len(whole)
            yield whole

        write_dir(self._disk, self._folder / ref.id, {_TENSORS: data(), MANIFEST: manifest()})
        return size

    def stored(self, but: Iterable[str] = ()) -> tuple[list[Stored], list[Objection]]:
        """The labels and sizes of all readable snapshots, oldest first, and why others were
        passed over; those in `but` are not looked at."""
        return self._labels.all(but)

    def refs(self, but: Iterable[str] = ()) -> tuple[list[SnapshotRef], list[Objection]]:
        """The same without sizes."""
        found, objections = self.stored(but)
        return [one.ref for one in found], objections

    def read(self, snapshot_id: str) -> Any:
        """Read a snapshot, verifying every byte.

        Raises:
            DamagedError: its files are not as they were written.
            SnapshotError: it cannot be read; either names it and says how.
        """
        body = self._labels.manifest(snapshot_id)
        try:
            expected, structure = body["files"][_TENSORS], body["structure"]
            size, digest = expected["size_bytes"], expected["blake2b"]
        except (KeyError, TypeError) as error:
            raise DamagedError(f"snapshot {snapshot_id}: {MANIFEST} is damaged") from error
        found = self._labels.read(snapshot_id, _TENSORS, self._disk.size)
        if found != size:
            raise DamagedError(
                f"snapshot {snapshot_id}: {_TENSORS} is damaged (it has {found} bytes, not "
                f"{size!r:.40})"
            )
        sink = hashlib.blake2b(digest_size=16)
        with self._labels.read(snapshot_id, _TENSORS, self._disk.open) as file:
            try:
                tensors = read(file, found, sink)
            except DAMAGE as error:
                raise DamagedError(f"snapshot {snapshot_id}: {_TENSORS}: {error}") from error
            except OSError as error:
                text = f"snapshot {snapshot_id}: {_TENSORS} cannot be read: {error}"
                raise SnapshotError(text) from error
        if sink.hexdigest() != digest:
            raise DamagedError(
                f"snapshot {snapshot_id}: {_TENSORS} is damaged (its digest does not match)"
            )
        try:
            return decode(structure, tensors)
        except SnapshotError as error:
            raise DamagedError(f"snapshot {snapshot_id}: {error}") from error

    def remove_all(self, snapshot_ids: Sequence[str]) -> None:
        """Remove several snapshots; one that is gone already is fine."""
        for snapshot_id in snapshot_ids:
            self.remove(snapshot_id)

    def remove(self, snapshot_id: str) -> None:
        """Remove one snapshot."""
        self._labels.forget(snapshot_id)
        if self._disk.exists(self._folder / snapshot_id):
            self._disk.remove_tree(self._folder / snapshot_id)

    def free_bytes(self) -> int:
        """Bytes that the disk has room for."""
        return self._disk.free_bytes(self._folder)
