"""Tensors in a safetensors file, written and read a tensor at a time.

The format is that of https://github.com/huggingface/safetensors: 8 bytes length of the header,
the header as JSON (`name: {"dtype", "shape", "data_offsets"}`), then the bytes of every tensor,
little-endian and row-major, without holes. Writing hands out the tensors' own memory; reading
fills each tensor where it will stay. So neither needs the state a second time in memory, as the
library's `save` and `load` do.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Final, Protocol

import torch

from foreshock.core.errors import SnapshotError
from foreshock.snapshots.codec import Tensors, tensor_bytes

DTYPES: Final[dict[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""What the format calls types of elements."""
CODES: Final = {dtype: name for name, dtype in DTYPES.items()}
MAX_HEADER_BYTES: Final = 100_000_000
"""As the safetensors library has it."""


def chunks(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """The file of these tensors, a piece at a time; nothing is read before its turn.

    Raises:
        SnapshotError: a tensor has a type that the format does not know; before any piece.
    """
    for tensor in tensors.values():
        if tensor.dtype not in CODES:
            raise SnapshotError(
                f"the state holds a tensor that no file can: of {tensor.dtype}; known are "
                f"{', '.join(str(dtype) for dtype in CODES)}"
            )
    return _chunks(sorted(tensors.items(), key=lambda item: -item[1].element_size()))


def header_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> bytes:
    """What stands before the bytes of these tensors, in this order."""
    header: dict[str, Any] = {}
    start = 0
    for name, tensor in tensors:
        stop = start + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _chunks(ordered: list[tuple[str, torch.Tensor]]) -> Iterator[bytes | memoryview]:
    yield header_of(ordered)
    for _, tensor in ordered:
        if tensor.numel():
            yield tensor_bytes(tensor)


class Sink(Protocol):
    """What is told every byte that is read, in order: a hash."""

    def update(self, data: memoryview | bytes, /) -> None:
        """Take in some bytes."""


def read(file: BinaryIO, size_bytes: int, sink: Sink) -> Tensors:
    """Read a file of tensors, and feed every byte of it to `sink.update`.

    No more memory is taken than the file is long.

    Args:
        file: at its beginning.
        size_bytes: how long it is.
        sink: a hash.

    Raises:
        ValueError: it is no such file, or ends early.
    """
    length = int.from_bytes(_exactly(file, 8, sink), "little")
    if length > min(MAX_HEADER_BYTES, size_bytes - 8):
        raise ValueError(f"its header of {length} bytes does not fit into {size_bytes} bytes")
    header = json.loads(_exactly(file, length, sink))
    entries = sorted(
        (_entry(name, fields) for name, fields in header.items() if name != "__metadata__"),
        key=lambda entry: (entry[3], entry[4]),
    )
    end = 0
    for _, _, _, start, stop in entries:
        if start != end:
            raise ValueError("its tensors overlap or leave a hole")
        end = stop
    if 8 + length + end != size_bytes:
        raise ValueError(f"its tensors end at byte {8 + length + end} of {size_bytes}")
    tensors: Tensors = {}
    for name, dtype, shape, start, stop in entries:
        tensors[name] = torch.empty(shape, dtype=dtype)
        if stop > start:
            _fill(file, tensor_bytes(tensors[name]), sink)
    return tensors


def _entry(name: str, fields: Any) -> tuple[str, torch.dtype, list[int], int, int]:
    dtype, shape = DTYPES[fields["dtype"]], fields["shape"]
    start, stop = fields["data_offsets"]
    numbers = [*shape, start, stop]
    if any(type(one) is not int or not 0 <= one < 1 << 62 for one in numbers):
        raise ValueError(f"the shape or place of tensor {name!r:.40} is no list of sizes")
    if stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"tensor {name!r:.40} has another size than its shape says")
    return name, dtype, shape, start, stop


def _exactly(file: BinaryIO, count: int, sink: Sink) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ValueError(f"it ends after {len(data)} of {count} bytes")
    sink.update(data)
    return data


def _fill(file: BinaryIO, view: memoryview, sink: Sink) -> None:
    filled = 0
    while filled < len(view):
        count = file.readinto(view[filled:])  # pyright: ignore[reportAttributeAccessIssue]
        if not count:
            raise ValueError("it ends within a tensor")
        filled += count
    sink.update(view)
