"""L2 norms of many tensors, right over the whole range of their values."""

from collections.abc import Sequence

import torch

_LOWEST, _HIGHEST = 1e-12, 1e18
_CHUNK = 1 << 13
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def l2_norms(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """L2 norm of each tensor, `[N]` in fp64 on `device`; non-finite if and only if an entry is.

    In fp32 the square of 1e-20 is 0, that of 1e20 is Inf, and a sum over millions of squares
    loses the fourth digit. Accelerators hence sum in fp64, which keeps pace with their memory.
    A CPU would take 25 times as long: there fp32 sums chunks of 8,192 (to 1e-5), and a norm
    outside [1e-12, 1e18] is taken again in fp64. Waits for no device but the CPU.

    >>> l2_norms([torch.full((4,), 1e30), torch.tensor([3.0, 4.0])], torch.device("cpu")).log10()
    tensor([30.3010,  0.6990], dtype=torch.float64)
    """
    real = [torch.view_as_real(one) if one.is_complex() else one for one in tensors]
    narrow = [place for place, one in enumerate(real) if one.is_cpu and one.dtype in _NARROW]
    values = _in_chunks([real[place] for place in narrow])
    right = [
        _LOWEST <= value <= _HIGHEST or (value == 0 and not real[place].any())
        for place, value in zip(narrow, values.tolist(), strict=True)
    ]
    if len(narrow) == len(real) and all(right):
        return values.to(device)
    found = {place: value for place, value, ok in zip(narrow, values, right, strict=True) if ok}
    wide = [place for place in range(len(real)) if place not in found]
    exact = torch._foreach_norm([real[place] for place in wide], dtype=torch.float64)
    found |= dict(zip(wide, exact, strict=True))
    return torch.stack([found[place].to(device) for place in range(len(real))])


def _in_chunks(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Norms `[N]` of tensors on the CPU, with fp32 inside chunks and fp64 across them."""
    parts = [tensor.reshape(-1).split(_CHUNK) for tensor in tensors]
    if not parts:
        return torch.zeros(0, dtype=torch.float64)
    norms = torch._foreach_norm([chunk for part in parts for chunk in part], dtype=torch.float32)
    sizes = torch.tensor([len(part) for part in parts])
    return torch.segment_reduce(
        torch.stack(norms).to(torch.float64).square(), "sum", lengths=sizes
    ).sqrt()
