"""Durable snapshots of one process: a folder each, whole or absent, verified when read.

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
from foreshock.snapshots.codec import decode, digest, encode
from foreshock.snapshots.damage import DAMAGE, DamagedError, blake2b
from foreshock.snapshots.labels import FORMAT, MANIFEST, Labels, Objection, canonical, is_sharded
from foreshock.snapshots.memory import Held
from foreshock.snapshots.sharded_whole import as_replicas, read_whole
from foreshock.snapshots.stores import Like, Loaded
from foreshock.snapshots.tensor_file import chunks, read
from foreshock.snapshots.writer import Written

_TENSORS = "tensors.safetensors"


class DiskStore:
    """The snapshots of one run directory; a sharded one is read whole.

    Args:
        disk: what everything is written through.
        folder: the `snapshots` folder.

    A snapshot appears whole or not at all. Writing raises `OSError` when the disk does:
    the caller decides to train on. Writing and reading may go on in two threads at a time,
    where the disk may.
    """

    shared = False

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

    def begin(self, ref: SnapshotRef) -> None:
        """Nothing has to hold first."""

    def save(self, held: Held) -> int:
        """Make a snapshot in memory durable, as `write` does; return its size in bytes."""
        training = held.training()
        tree = {
            "training": training,
            "watching": held.watching,
            "labels": list(held.labels),
            "digest": digest(training),
        }
        return self.write(held.ref, tree)

    def ended(self, ref: SnapshotRef, written: Written | None) -> Written | None:
        """What came of it here is all there is."""
        return written

    def stored(self, but: Iterable[str] = ()) -> tuple[list[Stored], list[Objection]]:
        """The labels and sizes of all readable snapshots, oldest first, and why others were
        passed over; those in `but` are not looked at."""
        return self._labels.all(but)

    def refs(self, but: Iterable[str] = ()) -> tuple[list[SnapshotRef], list[Objection]]:
        """The same without sizes."""
        found, objections = self.stored(but)
        return [one.ref for one in found], objections

    def load(
        self, snapshot_id: str, like: Like | None = None, own: frozenset[str] = frozenset()
    ) -> Loaded:
        """Read a snapshot as `read` does, with what a restored state must equal.

        Args:
            snapshot_id: which.
            like: every tensor is whole here, whatever it is.
            own: likewise.
        """
        body = self._labels.manifest(snapshot_id)
        if is_sharded(body):
            whole = read_whole(self._disk, self._folder, snapshot_id)
            return Loaded(as_replicas(whole), {}, (), len(whole.own), ())
        plain: Any = self._tree(snapshot_id, body)
        strong = [plain["digest"]] if "digest" in plain else []
        return Loaded(plain, {}, (), 1, (str(body["snapshot"]["digest"]), *strong))

    def read(self, snapshot_id: str) -> Any:
        """Read a snapshot, verifying every byte.

        Raises:
            DamagedError: its files are not as they were written.
            SnapshotError: it cannot be read; either names it and says how.
        """
        body = self._labels.manifest(snapshot_id)
        if is_sharded(body):
            return as_replicas(read_whole(self._disk, self._folder, snapshot_id))
        return self._tree(snapshot_id, body)

    def _tree(self, snapshot_id: str, body: dict[str, Any]) -> Any:
        try:
            expected, structure = body["files"][_TENSORS], body["structure"]
            size, wanted = expected["size_bytes"], expected["blake2b"]
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
        if sink.hexdigest() != wanted:
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

    def one(self, snapshot_id: str) -> Stored:
        """The label and the size of one; raises as `read` does."""
        return self._labels.one(snapshot_id)

    def is_sharded(self, snapshot_id: str) -> bool:
        """Whether ranks wrote it together; raises as `read` does."""
        return is_sharded(self._labels.manifest(snapshot_id))

    def total_bytes(self, held_bytes: int, share_bytes: int) -> int:
        """This process holds all of it."""
        return held_bytes

    def free_bytes(self) -> int:
        """Bytes that the disk has room for."""
        return self._disk.free_bytes(self._folder)
