"""The labels of durable snapshots: what their manifests say, read without torch.

A manifest is `{"blake2b": …, "body": {…}}`; the digest is that of the body in canonical JSON,
and in a sharded snapshot that of its bytes, see `sharded_sealed`.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from foreshock.core.errors import SnapshotError
from foreshock.core.retention import Stored
from foreshock.core.snapshot import SnapshotRef
from foreshock.durable import Disk
from foreshock.snapshots.damage import DAMAGE, DamagedError, blake2b
from foreshock.snapshots.sharded_sealed import FORMAT as SHARDED
from foreshock.snapshots.sharded_sealed import MAX_SEALED_BYTES, unseal

FORMAT = 1
MANIFEST = "manifest.json"


class Objection(str):
    """Why a snapshot was passed over, naming it.

    Attributes:
        id: which.
        lasting: whether its files are damaged, so that it need not be read again; otherwise
            it may be the disk, or the run, that changes.
    """

    __slots__ = ("id", "lasting")

    id: str
    lasting: bool

    def __new__(cls, snapshot_id: str, reason: str, *, lasting: bool = False) -> "Objection":
        made = super().__new__(cls, reason)
        made.id, made.lasting = snapshot_id, lasting
        return made


class Labels:
    """The snapshots in a folder, by their manifests.

    Args:
        disk: what they are read through.
        folder: the `snapshots` folder.
    """

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._known: dict[str, Stored] = {}  # what is on disk under a name never changes

    def all(self, but: Iterable[str] = ()) -> tuple[list[Stored], list[Objection]]:
        """Every readable one, oldest first, and why others were passed over.

        Args:
            but: ids that are not looked at.
        """
        found: list[Stored] = []
        objections: list[Objection] = []
        for name in sorted(set(self._names()) - set(but)):
            try:
                found.append(self.one(name))
            except DamagedError as error:
                objections.append(Objection(name, str(error), lasting=True))
            except SnapshotError as error:
                objections.append(Objection(name, str(error)))
        return sorted(found, key=lambda one: (one.ref.step, one.ref.attempt)), objections

    def forget(self, snapshot_id: str) -> None:
        """A snapshot is removed, or was replaced."""
        self._known.pop(snapshot_id, None)

    def manifest(self, snapshot_id: str) -> dict[str, Any]:
        """The body of a manifest, verified; of either format.

        Raises:
            DamagedError: it is damaged.
            SnapshotError: it cannot be read, or is of another format.
        """
        if (self._folder / snapshot_id).is_symlink():
            raise SnapshotError(f"snapshot {snapshot_id} is a symbolic link")
        size = self.read(snapshot_id, MANIFEST, self._disk.size)
        if size > MAX_SEALED_BYTES:
            raise DamagedError(f"snapshot {snapshot_id}: {MANIFEST} has {size} bytes, too many")
        data = self.read(snapshot_id, MANIFEST, self._disk.read)
        try:
            manifest = json.loads(data)
            body = manifest["body"]
            known = body["format"] in (FORMAT, SHARDED)
            if body["format"] == SHARDED:
                body = unseal(data)
                sound = True
            else:
                sound = manifest["blake2b"] == blake2b([canonical(body).encode()])
                # Nor may it say the same in other bytes: a key twice, say.
                sound = sound and canonical(manifest).encode() == data
        except DAMAGE as error:
            raise DamagedError(f"snapshot {snapshot_id}: {MANIFEST} is damaged") from error
        if not sound:
            raise DamagedError(f"snapshot {snapshot_id}: {MANIFEST} does not match its digest")
        if not known:
            raise SnapshotError(
                f"snapshot {snapshot_id} has format {body['format']!r:.80}, this version reads "
                f"{FORMAT} and {SHARDED}"
            )
        return body

    def read(self, snapshot_id: str, name: str, how: Callable[[Path], Any]) -> Any:
        """Read or open a file of a snapshot.

        Raises:
            DamagedError: it is not there.
            SnapshotError: the disk does not give it.
        """
        try:
            return how(self._folder / snapshot_id / name)
        except FileNotFoundError as error:
            raise DamagedError(f"snapshot {snapshot_id}: {name} is missing") from error
        except OSError as error:
            raise SnapshotError(
                f"snapshot {snapshot_id}: {name} cannot be read: {error}"
            ) from error

    def _names(self) -> list[str]:
        if not self._disk.exists(self._folder):
            return []
        return [name for name in self._disk.list(self._folder) if not name.startswith(".")]

    def one(self, name: str) -> Stored:
        """The label and the size of one.

        Raises:
            DamagedError: its manifest is damaged.
            SnapshotError: it cannot be read.
        """
        if name in self._known:
            return self._known[name]
        body = self.manifest(name)
        try:
            ref = SnapshotRef.from_json(body["snapshot"])
            sizes = [_size(entry) for entry in body.get("files", {}).values()]
        except (SnapshotError, *DAMAGE) as error:
            raise DamagedError(f"snapshot {name}: {error}") from error
        if ref.id != name:
            raise DamagedError(f"snapshot {name}: its label is that of {ref.id!r:.80}")
        self._known[name] = Stored(ref, sum(sizes))
        return self._known[name]


def is_sharded(body: dict[str, Any]) -> bool:
    """Whether the body of a manifest is that of a sharded snapshot."""
    return body["format"] == SHARDED


def _size(entry: Any) -> int:
    """Of a file as its manifest has it: an object, or size and digest."""
    value = entry["size_bytes"] if isinstance(entry, dict) else entry[0]
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is no size")
    return value


def canonical(body: Any) -> str:
    """The one JSON text of a body."""
    return json.dumps(body, sort_keys=True, allow_nan=False, separators=(",", ":"))
