"""L2 norms and largest magnitudes of many tensors, right over the whole range of their values."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from foreshock.fused import passes

_LOWEST, _HIGHEST = 1e-12, 1e18
_ROW = 1 << 10
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor (DTensor), or the tensor itself; detached and dense.

    Of a sparse gradient the summed values; complex numbers as pairs of real ones.
    """
    part = getattr(tensor, "to_local", None)
    found = (tensor if part is None else part()).detach()
    if found.is_sparse:
        found = found.coalesce().values()
    return torch.view_as_real(found.resolve_conj()) if found.is_complex() else found


class Sizes(NamedTuple):
    """How large tensors are, `[N]` each, in fp64 on one device.

    Attributes:
        norms: L2 norms, as `l2_norms` has them.
        largest: largest magnitudes, NaN where an entry is; None where they would take a pass
            of their own.
        num_zeros: entries that are zero; None likewise.
    """

    norms: torch.Tensor
    largest: torch.Tensor | None = None
    num_zeros: torch.Tensor | None = None


def sizes(tensors: Sequence[torch.Tensor], device: torch.device) -> Sizes:
    """The L2 norm of each tensor, and what the same pass over memory tells besides.

    >>> sizes([torch.tensor([3.0, -4.0])], torch.device("cpu")).norms
    tensor([5.], dtype=torch.float64)
    """
    real = [local(one) for one in tensors]
    found = passes.entries(real)
    if found is None:
        return Sizes(_l2_norms(real, device))
    return Sizes(*(torch.from_numpy(one).to(device) for one in found))


def l2_norms(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """L2 norm of each tensor, `[N]` in fp64 on `device`; non-finite if and only if an entry is.

    Of sharded tensors that of this rank's shard. In fp32 the square of 1e-20 is 0, that of
    1e20 is Inf, and a sum over millions of squares loses the fourth digit. Accelerators hence
    sum in fp64, which keeps pace with their memory, as do the fused passes. torch on a CPU
    would take 15 times as long: there fp32 sums rows of 1,024 (to 1e-6), and a norm outside
    [1e-12, 1e18] is taken again in fp64. Waits for no device but the CPU.

    >>> l2_norms([torch.full((4,), 1e30), torch.tensor([3.0, 4.0])], torch.device("cpu")).log10()
    tensor([30.3010,  0.6990], dtype=torch.float64)
    """
    return sizes(tensors, device).norms


def _l2_norms(real: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    narrow = [place for place, one in enumerate(real) if one.is_cpu and one.dtype in _NARROW]
    values = _by_rows([real[place] for place in narrow])
    right = [
        _LOWEST <= value <= _HIGHEST or (value == 0 and not real[place].any())
        for place, value in zip(narrow, values.tolist(), strict=True)
    ]
    if len(narrow) == len(real) and all(right):
        return torch.from_numpy(values).to(device)
    found = {
        place: torch.tensor(value, dtype=torch.float64)
        for place, value, ok in zip(narrow, values.tolist(), right, strict=True)
        if ok
    }
    wide = [place for place in range(len(real)) if place not in found]
    exact = torch._foreach_norm([real[place] for place in wide], dtype=torch.float64)
    found |= dict(zip(wide, exact, strict=True))
    return torch.stack([found[place].to(device) for place in range(len(real))])


def largest_magnitudes(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Largest absolute value of each tensor, `[N]` in fp32 on `device`; NaN if an entry is.

    0 for a tensor without elements; of complex numbers, of their real and imaginary parts. One
    pass over memory.
    """
    real = [local(one) for one in tensors]
    fused = passes.entries(real)
    if fused is not None:
        return torch.from_numpy(fused.largest).to(device, torch.float32)
    found: list[torch.Tensor] = []
    for one in real:
        if one.numel() == 0:
            found.append(torch.zeros((), device=device))
            continue
        low, high = torch.aminmax(one)
        found.append(torch.maximum(-low, high).to(device, torch.float32))
    return torch.stack(found)


def root_mean_square(tensor: torch.Tensor) -> torch.Tensor:
    """Root mean square of a tensor with elements, `[]` in fp64; non-finite if an entry is.

    On a CPU without the fused passes, sums over parts of it are fp32 (to 1e-6) unless they leave
    its range.
    """
    real = local(tensor)
    fused = passes.size_and_peak(real)
    if fused is not None:
        return torch.tensor(fused[0], dtype=torch.float64)
    return _root_mean_square(real)


def size_and_peak(tensor: torch.Tensor, sample: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Root mean square of a tensor, and its largest magnitude, `[]` each; NaN if an entry is.

    On an accelerator the latter is of `sample`, a part of it: there it takes another pass.
    """
    real = local(tensor)
    fused = passes.size_and_peak(real)
    if fused is not None:
        size, largest = torch.tensor(fused, dtype=torch.float64)
        return size, largest
    low, high = torch.aminmax(real if real.is_cpu else local(sample))
    return _root_mean_square(real), torch.maximum(-low, high)


def _root_mean_square(real: torch.Tensor) -> torch.Tensor:
    if not (real.is_cpu and real.dtype in _NARROW):
        norm = torch.linalg.vector_norm(real, dtype=torch.float64)
        return norm / real.numel() ** 0.5
    width = max(real.shape[-1], 1) if real.ndim else 1
    while width > _ROW and width % 2 == 0:
        width //= 2
    width = width if width <= _ROW else 1
    rows = torch.linalg.vector_norm(real.reshape(-1, width), dim=1, dtype=torch.float32)
    norm = torch.linalg.vector_norm(rows, dtype=torch.float64)
    if not _LOWEST <= float(norm) <= _HIGHEST:
        norm = torch.linalg.vector_norm(real, dtype=torch.float64)
    return norm / real.numel() ** 0.5


def row_norms(rows: torch.Tensor) -> torch.Tensor:
    """L2 norm of each short row of `[R, K]`, `[R]` in fp64, right over the whole range."""
    if not rows.is_cpu or rows.dtype == torch.float64:
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    norms = torch.linalg.vector_norm(rows, dim=1).to(torch.float64)
    known = norms.numpy()
    beyond = np.flatnonzero(~((known >= _LOWEST) & (known <= _HIGHEST)))
    if len(beyond):
        places = torch.from_numpy(beyond)
        norms[places] = torch.linalg.vector_norm(rows[places], dim=1, dtype=torch.float64)
    return norms


def _by_rows(tensors: list[torch.Tensor]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Norms `[N]` of tensors on the CPU, with fp32 inside rows and fp64 across them."""
    flat = [tensor.reshape(-1) for tensor in tensors]
    num_rows = [len(one) // _ROW for one in flat]
    rows = torch.empty(sum(num_rows), dtype=torch.float32)
    small: list[torch.Tensor] = []
    at = 0
    for one, count in zip(flat, num_rows, strict=True):
        whole = count * _ROW
        if count:
            torch.linalg.vector_norm(
                one[:whole].view(count, _ROW), dim=1, dtype=torch.float32, out=rows[at : at + count]
            )
            at += count
        small.append(one if not count else one[whole:])
    present = [place for place, one in enumerate(small) if len(one)]
    squares = np.zeros(len(flat))
    if present:
        norms = torch._foreach_norm([small[place] for place in present], dtype=torch.float32)
        squares[present] = torch.stack(norms).numpy().astype(np.float64) ** 2
    if at:
        with_rows = [place for place, count in enumerate(num_rows) if count]
        begins = np.cumsum([0, *(num_rows[place] for place in with_rows)])[:-1]
        squares[with_rows] += np.add.reduceat(rows.numpy().astype(np.float64) ** 2, begins)
    return np.sqrt(squares)
