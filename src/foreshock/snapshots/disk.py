"""Durable snapshots: a folder each, whole or absent, verified when read, run by nobody.

snapshots/00000120-a00001/
  manifest.json        label, structure, and the digest of every file
  tensors.safetensors  every tensor by name
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import SnapshotRef
from foreshock.durable import Disk, write_dir
from foreshock.snapshots.codec import DAMAGE, decode, encode

FORMAT = 1
_MANIFEST = "manifest.json"
_TENSORS = "tensors.safetensors"


class DiskStore:
    """The snapshots of one run directory.

    Args:
        disk: what everything is written through.
        folder: the `snapshots` folder.
        keep: how many of the newest are kept; the oldest of all (the run's start) stays
            besides, as the last resort.

    A snapshot appears whole or not at all. Writing raises `OSError` when the disk does:
    the caller decides to train on.
    """

    def __init__(self, disk: Disk, folder: Path, keep: int = 5) -> None:
        self._disk = disk
        self._folder = folder
        self._keep = keep
        self._labels: dict[str, SnapshotRef] = {}  # a snapshot's label never changes

    def write(self, ref: SnapshotRef, tree: Any) -> None:
        """Make a snapshot durable.

        Raises:
            SnapshotError: the state holds what a snapshot cannot.
            OSError: the disk is full or fails; nothing half-written stays.
        """
        structure, tensors = encode(tree)
        flat = {name: tensor.contiguous() for name, tensor in tensors.items()}
        try:
            data = safetensors.torch.save(_own_storage(flat))
        except (KeyError, ValueError, safetensors.SafetensorError) as error:
            raise SnapshotError(f"the state holds a tensor that no file can: {error}") from error
        body = {
            "format": FORMAT,
            "snapshot": ref.to_json(),
            "structure": structure,
            "files": {_TENSORS: {"size_bytes": len(data), "blake2b": _hash(data)}},
        }
        text = _canonical(body)
        manifest = _canonical({"blake2b": _hash(text.encode()), "body": body}).encode()
        files = {_TENSORS: [data], _MANIFEST: [manifest]}
        write_dir(self._disk, self._folder / ref.id, files)

    def refs(self) -> tuple[list[SnapshotRef], list[str]]:
        """The labels of all readable snapshots, oldest first, and why others were passed over."""
        found: list[SnapshotRef] = []
        objections: list[str] = []
        for name in self._names():
            try:
                found.append(self._label(name))
            except SnapshotError as error:
                objections.append(str(error))
        return sorted(found, key=lambda ref: (ref.step, ref.attempt)), objections

    def read(self, snapshot_id: str) -> Any:
        """Read a snapshot, verifying every byte.

        Raises:
            SnapshotError: it is missing or damaged; the message names it and says how.
        """
        body = self._manifest(snapshot_id)
        data = self._bytes(snapshot_id, _TENSORS)
        try:
            expected, structure = body["files"][_TENSORS], body["structure"]
            whole = len(data) == expected["size_bytes"] and _hash(data) == expected["blake2b"]
        except (KeyError, TypeError) as error:
            raise SnapshotError(f"snapshot {snapshot_id}: {_MANIFEST} is damaged") from error
        if not whole:
            raise SnapshotError(
                f"snapshot {snapshot_id}: {_TENSORS} is damaged (its digest does not match)"
            )
        try:
            tensors: dict[str, torch.Tensor] = safetensors.torch.load(data)
        except (safetensors.SafetensorError, *DAMAGE) as error:
            raise SnapshotError(f"snapshot {snapshot_id}: {_TENSORS}: {error}") from error
        try:
            return decode(structure, tensors)
        except SnapshotError as error:
            raise SnapshotError(f"snapshot {snapshot_id}: {error}") from error

    def rotate(self, alive: Callable[[SnapshotRef], bool] = lambda _: True) -> list[str]:
        """Remove all but the oldest and the newest `keep` of those `alive`; return their ids.

        One that a rollback has undone would otherwise, its step being higher, outlive those
        that count.
        """
        refs, _ = self.refs()
        living = [ref for ref in refs if alive(ref)]
        kept = {ref.id for ref in living[:1] + living[-self._keep :]}
        removed = [ref.id for ref in refs if ref.id not in kept]
        for snapshot_id in removed:
            self.remove(snapshot_id)
        return removed

    def remove(self, snapshot_id: str) -> None:
        """Remove one snapshot."""
        self._labels.pop(snapshot_id, None)
        self._disk.remove_tree(self._folder / snapshot_id)

    def _names(self) -> list[str]:
        if not self._disk.exists(self._folder):
            return []
        return [name for name in self._disk.list(self._folder) if not name.startswith(".")]

    def _label(self, name: str) -> SnapshotRef:
        if name in self._labels:
            return self._labels[name]
        body = self._manifest(name)
        try:
            ref = SnapshotRef.from_json(body["snapshot"])
        except (SnapshotError, KeyError) as error:
            raise SnapshotError(f"snapshot {name}: {error}") from error
        if ref.id != name:
            raise SnapshotError(f"snapshot {name}: its label is that of {ref.id!r:.80}")
        self._labels[name] = ref
        return ref

    def _bytes(self, snapshot_id: str, name: str) -> bytes:
        try:
            return self._disk.read(self._folder / snapshot_id / name)
        except OSError as error:
            raise SnapshotError(
                f"snapshot {snapshot_id}: {name} cannot be read: {error}"
            ) from error

    def _manifest(self, snapshot_id: str) -> dict[str, Any]:
        if (self._folder / snapshot_id).is_symlink():
            raise SnapshotError(f"snapshot {snapshot_id} is a symbolic link")
        data = self._bytes(snapshot_id, _MANIFEST)
        try:
            manifest = json.loads(data)
            body = manifest["body"]
            sound = manifest["blake2b"] == _hash(_canonical(body).encode())
            known = body["format"] == FORMAT
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SnapshotError(f"snapshot {snapshot_id}: {_MANIFEST} is damaged") from error
        if not sound:
            raise SnapshotError(f"snapshot {snapshot_id}: {_MANIFEST} does not match its digest")
        if not known:
            raise SnapshotError(
                f"snapshot {snapshot_id} has format {body['format']}, this version reads {FORMAT}"
            )
        return body


def _own_storage(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors refuses tensors that share a storage; views get one of their own."""
    seen: set[int] = set()
    own: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if pointer in seen else tensor
        seen.add(pointer)
    return own


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _canonical(body: Any) -> str:
    return json.dumps(body, sort_keys=True, allow_nan=False, separators=(",", ":"))
