"""One pass over memory for several readings at once, for tensors on a CPU.

Every function returns None, or False, where it cannot do its work: no compiler (see `library`), an
accelerator, another dtype, memory that is not contiguous. The caller then takes torch's way.
Nothing that is measured is written to.
"""

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from foreshock.fused.library import library

_KINDS = {torch.float32: 0, torch.bfloat16: 1}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_FEW = 1 << 16
"""Elements up to which a second thread is not worth waking."""

_Three = ctypes.c_double * 3
_off = 0


class Entries(NamedTuple):
    """What one pass tells of each tensor, `[N]` each, in fp64.

    Attributes:
        norms: L2 norm.
        largest: largest magnitude; NaN if an entry is.
        num_zeros: entries that are zero.
    """

    norms: NDArray[np.float64]
    largest: NDArray[np.float64]
    num_zeros: NDArray[np.float64]


class Updates(NamedTuple):
    """Sums over the sample of each parameter, `[P]` each, in fp64.

    Attributes:
        moved: of squares of its movement since the sample before.
        size: of squares of its weights.
        first: of squares of its first moment.
        second: of its second moment.
        stale: of `g^2 / max(second, least)`.
    """

    moved: NDArray[np.float64]
    size: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    stale: NDArray[np.float64]


def status() -> str:
    """How the passes were made, or why they are not there."""
    return library().said


@contextmanager
def unfused() -> Iterator[None]:
    """In here torch does all the work, to compare."""
    global _off  # noqa: PLW0603 - a switch of the process, for tests and benchmarks
    _off += 1
    try:
        yield
    finally:
        _off -= 1


def entries(tensors: Sequence[torch.Tensor]) -> Entries | None:
    """Norm, largest magnitude and zeros of each tensor (fp32 or bf16), in one pass over each."""
    addresses: list[int] = []
    for one in tensors:
        at = address(one)
        if at is None:
            return None
        addresses.append(at)
    if (functions := _functions()) is None:
        return None
    num = len(tensors)
    sizes = [one.numel() for one in tensors]
    about = np.array([addresses, sizes, [_KINDS[one.dtype] for one in tensors]], dtype=np.int64)
    found = np.empty((3, num))
    at = about.ctypes.data
    if functions.foreshock_entries(
        at, at + 8 * num, at + 16 * num, num, _threads(sum(sizes)), found.ctypes.data
    ):
        raise MemoryError("no memory for the sums of a pass")
    return Entries(np.sqrt(found[0]), found[1], found[2])


def size_and_peak(tensor: torch.Tensor) -> tuple[float, float] | None:
    """Root mean square and largest magnitude of one tensor; None also of one without elements.

    Calls no operator of torch, and little else: between two large products every line of Python
    runs on cold caches.
    """
    at, size, found = address(tensor), tensor.numel(), _Three()
    if not at or not size or _off or (known := library()).functions is None:
        return None
    kind = _KINDS[tensor.dtype]
    threads = torch.get_num_threads() if size > _FEW and known.may_thread else 1
    if known.functions.foreshock_entry(at, size, kind, threads, found):
        raise MemoryError("no memory for the sums of a pass")
    return math.sqrt(found[0] / size), found[1]


def gather(addresses: NDArray[np.int64], places: NDArray[np.int64], buffer: torch.Tensor) -> bool:
    """Copy the sample of each fp32 tensor on the CPU to its place in a buffer.

    Args:
        addresses: of each tensor's first element, `[N]`; 0 fills its place with zeros.
        places: start, count, length, stride and place in the buffer, in elements, `[N, 5]`.
        buffer: fp32, contiguous.
    """
    to = address(buffer)
    if to is None or (functions := _functions()) is None:
        return False
    functions.foreshock_gather(
        addresses.ctypes.data,
        places.ctypes.data,
        len(places),
        _threads(buffer.numel()),
        to,
    )
    return True


def updates(
    addresses: NDArray[np.int64],
    places: NDArray[np.int64],
    *,
    before: torch.Tensor,
    grads: torch.Tensor,
    weights: torch.Tensor,
    least: float,
) -> Updates | None:
    """What an update did, over the sample of each parameter, in one visit of each.

    Args:
        addresses: of each parameter, its first moment and its second one, `[3, P]`; 0 where there
            is no moment. All fp32, contiguous, on the CPU.
        places: as for `gather`, `[P, 5]`.
        before: buffer with the sample of the weights before.
        grads: buffer with the sample of the gradients.
        weights: buffer that gets the sample of the weights now.
        least: second moments below it count as it.
    """
    buffers = [address(one) for one in (before, grads, weights)]
    if None in buffers or (functions := _functions()) is None:
        return None
    num = len(places)
    found = np.empty((5, num))
    at = addresses.ctypes.data
    if functions.foreshock_updates(
        at,
        at + 8 * num,
        at + 16 * num,
        places.ctypes.data,
        num,
        _threads(3 * weights.numel()),
        buffers[0],
        buffers[1],
        least,
        buffers[2],
        found.ctypes.data,
    ):
        raise MemoryError("no memory for the sample of a parameter")
    return Updates(*found)


def logits(found: torch.Tensor, first: int, every: int) -> NDArray[np.float64] | None:
    """Of rows of logits `[.., V]` (fp32 or bf16): largest, total and moment, `[R, 3]`.

    With `b` the distance of each logit to the row's largest: the sums of `e^b` and `e^b * b`.

    Args:
        found: logits, with at least one row; None if they have no width.
        first: the first row to look at, of all of them counted through.
        every: from one row to the next.
    """
    at = address(found)
    if not at or found.is_nested or not found.ndim or (functions := _functions()) is None:
        return None
    width = found.shape[-1]
    num = len(range(first, found.numel() // width, every))
    seen = np.empty((num, 3))
    functions.foreshock_logits(
        at + first * width * found.element_size(),
        _KINDS[found.dtype],
        num,
        every * width,
        width,
        _threads(num * width),
        seen.ctypes.data,
    )
    return seen


def _functions() -> Any:
    return None if _off else library().functions


def address(one: torch.Tensor) -> int | None:
    """Where the elements of a tensor begin, all of them in order; 0 if it has none.

    None if the passes cannot visit it: a subclass (which may hold nothing itself, or wait for what
    is on its way), another device or dtype, other memory than contiguous, memory that was given
    back, a tensor within a transform of functions.
    """
    usual = type(one) in _PLAIN and one.is_cpu and one.dtype in _KINDS
    if not usual or one.layout is not torch.strided or not one.is_contiguous() or one.is_neg():
        return None
    try:
        at = one.data_ptr()
    except RuntimeError:
        return None
    if one.numel() == 0:
        return 0
    return at or None


def _threads(num_elements: int) -> int:
    if num_elements <= _FEW or not library().may_thread:
        return 1
    return torch.get_num_threads()
