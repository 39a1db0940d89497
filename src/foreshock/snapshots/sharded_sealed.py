"""Small JSON files that carry their own digest, and names of what lies in a sharded snapshot.

A sealed file is `{"blake2b":"<32 hex>","body":<canonical JSON>}`: the digest is that of the
bytes of the body, so that no byte of the file can change unseen. The digest guards against
damage, not against forgery: whatever is read is checked as if a stranger had written it.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from foreshock.core.errors import SnapshotError
from foreshock.durable import Disk
from foreshock.snapshots.damage import DAMAGE, DamagedError, blake2b

FORMAT = "sharded-1"
MANIFEST = "manifest.json"
MAX_SEALED_BYTES = 1 << 30
MAX_WHOLE = 1 << 62
MAX_DIMENSIONS = 64
_HEX = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HEAD, _MIDDLE, _END = b'{"blake2b":"', b'","body":', b"}"


def seal(body: Any) -> bytes:
    """The bytes of a sealed file; ValueError if it is too large or holds what JSON does not."""
    text = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_SEALED_BYTES - 100:
        raise ValueError(f"{len(text)} bytes of JSON, where {MAX_SEALED_BYTES} are allowed")
    return _HEAD + blake2b([text]).encode() + _MIDDLE + text + _END


def unseal(data: bytes) -> Any:
    """Undo `seal`.

    Raises:
        ValueError: the bytes are not those that were written, or no strict JSON.
        RecursionError: it is nested too deeply.
    """
    start = len(_HEAD) + 32 + len(_MIDDLE)
    text = data[start:-1]
    if data != _HEAD + blake2b([text]).encode() + _MIDDLE + text + _END:
        raise ValueError("its content does not match its digest")
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite)


def read_sealed(disk: Disk, path: Path, *, snapshot_id: str) -> tuple[Any, bytes]:
    """The body of a sealed file and its bytes.

    Raises:
        DamagedError: it is missing, too large or damaged; names it.
        SnapshotError: the disk does not give it.
    """
    kind: type[SnapshotError] = DamagedError
    try:
        size = disk.size(path)
        if size > MAX_SEALED_BYTES:
            raise ValueError(f"{size} bytes, where {MAX_SEALED_BYTES} are allowed")
        data = disk.read(path)
        return unseal(data), data
    except OSError as error:
        kind = DamagedError if isinstance(error, FileNotFoundError) else SnapshotError
        reason = f"cannot be read: {error.strerror or error}"
    except DAMAGE as error:
        reason = f"is damaged: {error!s:.200}"
    raise kind(f"snapshot {snapshot_id}: {path.name} {reason}")


def shard_name(rank: int) -> str:
    """The file of a rank's tensors."""
    return f"rank-{rank:05d}.safetensors"


def contents_name(rank: int) -> str:
    """The file that says what is in it, and holds the rank's own state."""
    return f"rank-{rank:05d}.json"


def chunk_key(name: str, offsets: tuple[int, ...]) -> str:
    """What a chunk of a tensor is called in a shard file."""
    return f"{name}@{','.join(map(str, offsets))}"


def checked_id(snapshot_id: str) -> str:
    """The id itself, if it can be the name of a folder.

    Raises:
        SnapshotError: it cannot, or might lead elsewhere.
    """
    if not _ID.fullmatch(snapshot_id):
        raise SnapshotError(f"{snapshot_id!r:.120} is no id of a snapshot")
    return snapshot_id


def whole(value: Any, limit: int = MAX_WHOLE) -> int:
    """A whole number from 0 to below a limit, else ValueError."""
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{value!r:.40} is no whole number below {limit}")
    return value


def wholes(value: Any) -> tuple[int, ...]:
    """A list of whole numbers, as long as a tensor may have dimensions, else ValueError."""
    if type(value) is not list or len(value) > MAX_DIMENSIONS:
        raise ValueError(f"{value!r:.40} is no list of up to {MAX_DIMENSIONS} whole numbers")
    return tuple(whole(one) for one in value)


def hexadecimal(value: Any) -> str:
    """A digest, else ValueError."""
    if type(value) is not str or not _HEX.fullmatch(value):
        raise ValueError(f"{value!r:.40} is no digest")
    return value


def mapping(value: Any, keys: frozenset[str] | None = None) -> dict[str, Any]:
    """An object, with exactly these keys where they are given; else ValueError."""
    if type(value) is not dict or (keys is not None and value.keys() != keys):
        wanted = f" with {', '.join(sorted(keys))}" if keys is not None else ""
        raise ValueError(f"{value!r:.40} is no object{wanted}")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no strict JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is no finite number")
    return value
