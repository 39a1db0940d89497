"""State trees: nested plain values and tensors, as JSON structure plus tensors, and a digest.

Nothing here can run code from a file: the structure is JSON, and the tensors are named
arrays. What JSON cannot hold is refused when it is captured, with its place in the tree.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from foreshock.core.errors import SnapshotError
from foreshock.core.reading import from_json_number, json_number
from foreshock.ranks.placement import is_distributed, own_data
from foreshock.snapshots.damage import DAMAGE

Tensors = dict[str, torch.Tensor]
Seen = dict[tuple[Any, ...], str] | None
_SCALAR_KINDS = "biufc"
_STORED_AS = {"<u2": "<i2", "<u4": "<i4", "<u8": "<i8", "<c8": "<f4", "<c16": "<f8"}
"""Types of arrays that not every tensor format has, and others of the same bits."""


def encode(tree: Any, *, share: bool = True) -> tuple[Any, Tensors]:
    """Split a state tree into a strict JSON structure and its tensors by name.

    Handles None, bool, int, float (NaN and Inf too), str, bytes, list, tuple, dict with
    scalar keys, NumPy arrays and scalars, and tensors.

    Args:
        tree: the state tree.
        share: store tensors that are the same view of one storage (tied weights) once.

    Raises:
        SnapshotError: something else, with its place in the tree.
    """
    tensors: Tensors = {}
    try:
        structure = _encode(tree, "state", tensors, {} if share else None)
    except RecursionError as error:
        raise SnapshotError("the state is nested too deeply, or contains itself") from error
    return structure, tensors


def decode(structure: Any, tensors: Tensors) -> Any:
    """Undo `encode`.

    Raises:
        SnapshotError: the structure is malformed, or a tensor is missing.
    """
    try:
        return _decode(structure, tensors)
    except DAMAGE as error:
        raise SnapshotError(f"the snapshot's structure is damaged: {error!r:.200}") from error


def digest(tree: Any) -> str:
    """Digest of a state tree: equal if and only if every value and every bit is equal.

    BLAKE2b over the structure and each tensor's dtype, shape and bytes; 128 bits in
    hexadecimal. NaNs count by their bits. Of a DTensor those that this rank holds.
    """
    structure, tensors = encode(tree, share=False)
    sink = hashlib.blake2b(digest_size=16)
    sink.update(json.dumps(structure, sort_keys=True).encode())
    for name, tensor in tensors.items():
        sink.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        sink.update(tensor_bytes(tensor))
    return sink.hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor, in row-major order; of a DTensor those that this rank holds."""
    held = own_data(tensor)
    if not held.numel():
        return memoryview(b"")
    flat = held.cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]


def _encode(node: Any, path: str, tensors: Tensors, seen: Seen) -> Any:
    if node is None or type(node) in (bool, int, str):
        return {"v": node}
    if isinstance(node, torch.Tensor) and node.is_complex():
        pairs = torch.view_as_real(node.detach().resolve_conj())
        return {"c": _store(pairs, path, tensors, seen)}
    if isinstance(node, torch.Tensor):
        return {"t": _store(node, path, tensors, seen)}
    if isinstance(node, np.ndarray):
        stored = _store(_from_numpy(node, path), path, tensors, None)
        return {"n": [stored, node.dtype.str]}
    if isinstance(node, np.generic) and node.dtype.kind in _SCALAR_KINDS:
        return {"s": [node.dtype.str, node.tobytes().hex()]}
    if isinstance(node, bool | int | str):  # an enumeration, say: its plain value
        return {"v": str(node) if isinstance(node, str) else int(node)}
    if isinstance(node, float):
        return {"v": float(node)} if math.isfinite(node) else {"f": json_number(node)}
    if isinstance(node, bytes):
        return {"b": node.hex()}
    if isinstance(node, list | tuple):
        kind = "l" if isinstance(node, list) else "u"
        items = enumerate(node)
        return {kind: [_encode(item, f"{path}[{i}]", tensors, seen) for i, item in items]}
    if isinstance(node, dict):
        return {"d": list(_encode_items(node, path, tensors, seen))}
    raise SnapshotError(
        f"{path} is a {type(node).__name__}, which a snapshot cannot hold; allowed are numbers, "
        "strings, bytes, lists, tuples, dicts, arrays and tensors"
    )


def _encode_items(node: dict[Any, Any], path: str, tensors: Tensors, seen: Seen) -> Iterator[Any]:
    for key, value in node.items():
        if not isinstance(key, str | int | float | bool | None):
            raise SnapshotError(
                f"{path} has the key {key!r} of type {type(key).__name__}; a snapshot's keys are "
                "strings and numbers"
            )
        encoded_key = _encode(key, f"{path} key", tensors, seen)
        yield [encoded_key, _encode(value, f"{path}.{key}", tensors, seen)]


def _store(tensor: torch.Tensor, path: str, tensors: Tensors, seen: Seen) -> str:
    if tensor.layout != torch.strided:
        raise SnapshotError(f"{path} is a {tensor.layout} tensor; snapshots hold dense ones only")
    held = own_data(tensor)
    shapes = (tuple(tensor.shape), tuple(held.shape), is_distributed(tensor))
    identity = (held.data_ptr(), tensor.dtype, *shapes, held.stride())
    if seen is not None and held.numel() and identity in seen:
        return seen[identity]
    name = str(len(tensors))
    tensors[name] = tensor.detach()
    if seen is not None:
        seen[identity] = name
    return name


def _from_numpy(array: "np.ndarray[Any, Any]", path: str) -> torch.Tensor:
    plain = array.reshape(-1).copy()
    stored = _STORED_AS.get(array.dtype.str)
    pair = (2,) if array.dtype.kind == "c" else ()
    try:
        return torch.from_numpy(plain.view(stored) if stored else plain).reshape(array.shape + pair)
    except (TypeError, ValueError) as error:
        raise SnapshotError(
            f"{path} is an array of {array.dtype}, which a tensor cannot hold"
        ) from error


def _decode(node: Any, tensors: Tensors) -> Any:
    ((kind, content),) = node.items()
    match kind:
        case "v":
            return content
        case "t":
            return tensors[content]
        case "c":
            return torch.view_as_complex(tensors[content])
        case "n":
            dtype, array = _scalar_type(content[1]), tensors[content[0]].numpy()
            shape = array.shape[:-1] if dtype.kind == "c" else array.shape
            return array.view(dtype).reshape(shape)
        case "s":
            (value,) = np.frombuffer(bytes.fromhex(content[1]), _scalar_type(content[0]))
            return value
        case "f":
            return from_json_number(content)
        case "b":
            return bytes.fromhex(content)
        case "l":
            return [_decode(item, tensors) for item in content]
        case "u":
            return tuple(_decode(item, tensors) for item in content)
        case "d":
            return {_decode(key, tensors): _decode(value, tensors) for key, value in content}
        case _:
            raise ValueError(f"unknown node {kind!r}")


def _scalar_type(name: Any) -> "np.dtype[Any]":
    dtype = np.dtype(name) if isinstance(name, str) else np.dtype("O")
    if dtype.kind not in _SCALAR_KINDS:
        raise ValueError(f"{name!r:.20} is no type of number")
    return dtype
