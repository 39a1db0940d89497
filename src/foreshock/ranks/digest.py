"""Digests of tensors on their device: equal bits, equal digests, whatever the order and split.

The tensor is read as words: its bit patterns as signed integers (8, 16 or 32 bits; a number of
64 bits is two words, a complex one two numbers, on further axes). With w_d(i) a pseudo-random
odd 64-bit integer for index i of axis d,

    D_1 = sum over words  x[i_0, i_1, ...] * w_0(i_0) * w_1(i_1) * ...    mod 2^64
    D_2 = the same with other w_0

Sums of integers that wrap do not depend on the order, so every device, thread count and kernel
gives the same two numbers; indices are those of the whole tensor, so the digests of the shards
of one tensor add up (mod 2^64) to that of the whole.

Strength: any single flipped bit changes D_1, always: 2^b times an odd number is not 0. Two
flips cancel in D_1 if 2^b (w ± w') = 0 mod 2^64: for the top bit of a 32-bit word with chance
2^-32, for lower bits less; a plain wrapping 32-bit sum loses every second flip of a sign. Two
equal elements that change places are not a change; unequal ones change D_1 but with like
chance. D_2 adds as much again for changes with different first indices. It guards against
faults, not against somebody who wants a collision.

No source for the construction: our choice, a product form of the multilinear hash of Carter and
Wegman (1979), https://doi.org/10.1016/0022-0000(79)90044-8, because product weights need two
short vectors a tensor and split along any dimension. The mixing is splitmix64 (Steele, Lea and
Flood 2014, https://doi.org/10.1145/2714064.2660195).
"""

import functools
import math
from collections.abc import Sequence

import torch

from foreshock.core.errors import ConfigError
from foreshock.ranks.placement import LocalPart

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
_INNER = 256  # shorter rows are folded together: one row costs a call, long ones a read
_CPU_CHUNK = 1 << 17  # words widened to 64 bits at a time: 1 MB stays in the cache
_CHUNK = 1 << 24  # elsewhere 128 MB of workspace at most
_KEPT = 1 << 16  # longer vectors of weights are made again each time, 0.5 MB stays
_PERIOD = 4096
_HIGH = 128  # the axes whose weights count the periods
_SECOND = 64  # the axis whose weights D_2 takes in place of those of axis 0


def digests(parts: Sequence[torch.Tensor | LocalPart], device: torch.device) -> torch.Tensor:
    """Digest of each tensor or part of one, `[P, 2]` int64 on `device`; waits for no host.

    One read of each tensor, widened to 64 bits in chunks. Zero for an empty part. NaNs count
    by their bits, and so do the signs of zeros.

    Raises:
        ConfigError: a tensor is sparse, nested, quantized or on the meta device, or its part is
            a summand (see `LocalPart.partial`).

    >>> whole = torch.arange(6.0).reshape(2, 3)
    >>> top = LocalPart(whole[:1], (0, 0), (2, 3), 1.0, False)
    >>> end = LocalPart(whole[1:], (1, 0), (2, 3), 1.0, False)
    >>> full, first, second = digests([whole, top, end], torch.device("cpu"))
    >>> bool((first + second == full).all()), bool((first == second).any())
    (True, False)
    """
    with torch.no_grad():
        found = [_digest(part).to(device) for part in parts]
        return torch.stack(found) if found else torch.zeros(0, 2, dtype=torch.int64, device=device)


def halves(digests: torch.Tensor) -> torch.Tensor:
    """Digests `[..., 2]` int64 as `[..., 4]` fp64, exact, for a collective of floats.

    Sums of up to 2^20 of them are exact too, and `whole` of the sum is the sum of digests.
    """
    low = digests & 0xFFFFFFFF
    high = digests >> 32
    return torch.cat([low, high], dim=-1).to(torch.float64)


def whole(halves: torch.Tensor) -> torch.Tensor:
    """Undo `halves`: `[..., 4]` fp64 to `[..., 2]` int64."""
    low, high = halves.to(torch.int64).split(2, dim=-1)
    return (high << 32) + low


def _digest(part: torch.Tensor | LocalPart) -> torch.Tensor:
    if isinstance(part, LocalPart):
        tensor, offset = part.tensor, part.offset
    else:
        tensor, offset = part.detach(), (0,) * part.ndim
    _refuse(tensor, isinstance(part, LocalPart) and part.partial)
    words = _words(tensor)
    if not words.numel():
        return torch.zeros(2, dtype=torch.int64, device=words.device)
    starts = (*offset, *(0 for _ in range(words.ndim - len(offset))))
    pieces = words.split(_KEPT)
    return torch.stack(
        [_piece(one, (starts[0] + i * _KEPT, *starts[1:])) for i, one in enumerate(pieces)]
    ).sum(0)


def _piece(words: torch.Tensor, starts: tuple[int, ...]) -> torch.Tensor:
    split = _split(tuple(words.shape))
    axes = [
        _weights(axis, start, size, words.device)
        for axis, (start, size) in enumerate(zip(starts, words.shape, strict=True))
    ]
    rest = axes[1:split]
    second = _weights(_SECOND, starts[0], words.shape[0], words.device)
    pair = torch.stack([_outer([axes[0], *rest]), _outer([second, *rest])])
    if not axes[split:]:
        return (pair * words).sum(-1)
    return (pair * _row_sums(words, _outer(axes[split:]), split)).sum(-1)


def _refuse(tensor: torch.Tensor, partial: bool) -> None:
    if partial:
        raise ConfigError(
            "a digest was asked of a Partial DTensor: its local data are summands, and no digest "
            "of the sum follows from them; redistribute it first, or leave it out"
        )
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else "sparse"
        raise ConfigError(
            f"a digest was asked of a {kind} tensor of shape {tuple(tensor.shape)}; only dense "
            "ones have one bit pattern for one value: densify it, or leave it out"
        )
    if tensor.is_meta:
        raise ConfigError("a digest was asked of a tensor on the meta device, which has no data")


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bit patterns as integers of up to 32 bits, at least one-dimensional."""
    plain = tensor.resolve_conj().resolve_neg()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    plain = plain.reshape(1) if not plain.ndim else plain
    wanted = _WORDS[plain.dtype.itemsize]
    if plain.dtype.itemsize == 8:
        dense = plain.contiguous()
        if dense.stride(-1) != 1:  # of one element, whose stride may be anything
            dense = dense.clone(memory_format=torch.contiguous_format)
        return dense.view(wanted).unflatten(-1, (-1, 2))
    return plain if plain.dtype is wanted else plain.view(wanted)


def _split(shape: tuple[int, ...]) -> int:
    """How many leading axes count as rows: as many as leave rows of `_INNER` words, at least 1."""
    for split in range(len(shape) - 1, 1, -1):
        if math.prod(shape[split:]) >= _INNER:
            return split
    return 1


def _row_sums(words: torch.Tensor, weights: torch.Tensor, split: int) -> torch.Tensor:
    """Weighted sum of each row, `[R]` int64."""
    flat = words.reshape(math.prod(words.shape[:split]), -1)
    num_rows, size = flat.shape
    chunk = _CPU_CHUNK if flat.is_cpu else _CHUNK
    sums = torch.zeros(num_rows, dtype=torch.int64, device=flat.device)
    height, width = max(1, chunk // size), min(size, chunk)
    space = torch.empty(min(height, num_rows) * width, dtype=torch.int64, device=flat.device)
    for top in range(0, num_rows, height):
        band = flat[top : top + height]
        for left in range(0, size, width):
            block = band[:, left : left + width]
            wide = space[: block.numel()].view(block.shape).copy_(block)
            sums[top : top + height] += _times(wide, weights[left : left + width])
    return sums


def _times(wide: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    if wide.is_cpu:
        return wide @ weights
    return wide.mul_(weights).sum(-1)  # there is no product of integer matrices on accelerators


def _outer(vectors: list[torch.Tensor]) -> torch.Tensor:
    """Products of one entry of each vector, in row-major order."""
    product = vectors[0]
    for vector in vectors[1:]:
        product = (product[:, None] * vector).reshape(-1)
    return product


def _weights(axis: int, start: int, size: int, device: torch.device) -> torch.Tensor:
    """Weights of indices start to start + size of an axis, `[size]` odd int64."""
    return (_kept if size <= _KEPT else _made)(axis, start, size, device)


def _made(axis: int, start: int, size: int, device: torch.device) -> torch.Tensor:
    """Index i has the weight m(axis, i mod 4096) * m'(axis, i div 4096), to be made quickly."""
    with torch.inference_mode(False):
        first, last = start // _PERIOD, (start + size - 1) // _PERIOD
        high = _mixed(axis + _HIGH, torch.arange(first, last + 1, device=device))
        product = _outer([high, _mixed(axis, torch.arange(_PERIOD, device=device))])
        return product.narrow(0, start - first * _PERIOD, size).clone()


_kept = functools.lru_cache(maxsize=128)(_made)


def _mixed(axis: int, index: torch.Tensor) -> torch.Tensor:
    z = (index + ((axis << 40) + 1)) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return (z ^ _shifted(z, 31)) | 1


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
