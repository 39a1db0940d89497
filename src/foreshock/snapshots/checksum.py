"""A digest of a state as fast as memory is read, for what never left it.

Each tensor is read as rows of 256 words of 64 bits, in row-major order, and

    C = sum over rows r  w(r) * (sum of the words of row r)    mod 2^64

with w(r) a pseudo-random odd number; the bytes after the last whole row count as a row of
words padded with zeros. The checksum is BLAKE2b over the structure and every tensor's dtype,
shape and C.

Strength: any flipped bit changes it, always, and so does a tensor, a row or a part of one in
another place, but with chance 2^-64. Within one row (2 KiB) words that change places, and two
flips of one bit position in opposite directions, do not show. That is enough to tell a copy
that went wrong or memory that decayed, at the speed of memory; files, which can be damaged in
any way, are held to BLAKE2b. On an accelerator it is computed where the tensor is.

No source: our choice, because the other digests here read several times slower than a copy
writes, and a rollback would spend its time on them. The weights are splitmix64 (Steele, Lea and
Flood 2014, https://doi.org/10.1145/2714064.2660195).
"""

import functools
import hashlib
import json
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foreshock.ranks.placement import own_data
from foreshock.snapshots.codec import encode

_ROW = 256
_WORD_BYTES = 8
_PREFIX = "words:"


def checksum(tree: Any) -> str:
    """Checksum of a state tree, as text; of a DTensor what this rank holds counts.

    >>> checksum([torch.zeros(2)]) == checksum([torch.zeros(2)])
    True
    >>> checksum([torch.zeros(2)]) == checksum([-torch.zeros(2)])
    False
    """
    structure, tensors = encode(tree, share=False)
    sink = hashlib.blake2b(digest_size=16)
    sink.update(json.dumps(structure, sort_keys=True).encode())
    sums = _sums(list(tensors.values()))
    for (name, tensor), total in zip(tensors.items(), sums, strict=True):
        sink.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:{total};".encode())
    return _PREFIX + sink.hexdigest()


def is_checksum(text: str) -> bool:
    """Whether a digest was made by `checksum`."""
    return text.startswith(_PREFIX)


def _sums(tensors: list[torch.Tensor]) -> list[int]:
    """C of each tensor; waits once for each device."""
    found: list[int] = [0] * len(tensors)
    waiting: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for place, tensor in enumerate(tensors):
        held = own_data(tensor)
        if not held.numel():
            continue
        flat = held.contiguous().reshape(-1).view(torch.uint8)
        if flat.is_cpu:
            found[place] = _host_sum(flat.numpy())  # pyright: ignore[reportArgumentType]
        else:
            waiting.setdefault(flat.device, []).append((place, _device_sum(flat)))
    for pairs in waiting.values():
        values = torch.stack([total for _, total in pairs]).tolist()
        for (place, _), value in zip(pairs, values, strict=True):
            found[place] = value & (2**64 - 1)
    return found


def _host_sum(flat: NDArray[np.uint8]) -> int:
    row_bytes = _ROW * _WORD_BYTES
    num_rows, rest = divmod(len(flat), row_bytes)
    whole = flat[: num_rows * row_bytes].view(np.uint64).reshape(num_rows, _ROW)
    sums = np.add.reduce(whole, axis=1)
    if rest:
        last = np.zeros(row_bytes, np.uint8)
        last[:rest] = flat[num_rows * row_bytes :]
        sums = np.append(sums, np.add.reduce(last.view(np.uint64)))
    return int((sums * _weights(len(sums))).sum(dtype=np.uint64))


def _device_sum(flat: torch.Tensor) -> torch.Tensor:
    missing = -len(flat) % (_ROW * _WORD_BYTES)
    if missing or flat.storage_offset() % _WORD_BYTES:
        flat = torch.nn.functional.pad(flat, (0, missing))
    sums = flat.view(torch.int64).reshape(-1, _ROW).sum(1)
    weights = torch.from_numpy(_weights(len(sums)).view(np.int64))
    return (sums * weights.to(flat.device)).sum()


def _weights(count: int) -> NDArray[np.uint64]:
    """w(0) to w(count - 1)."""
    return _kept_weights(max(12, (count - 1).bit_length()))[:count]


@functools.lru_cache(maxsize=24)
def _kept_weights(bits: int) -> NDArray[np.uint64]:
    z = np.arange(1, (1 << bits) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)
