"""L2 norms of many tensors, right over the whole range of their values."""

from collections.abc import Sequence

import torch

_LOWEST, _HIGHEST = 1e-12, 1e18
_HALF_PRECISIONS = (torch.float16, torch.bfloat16)


def l2_norms(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """L2 norm of each tensor, `[N]` in fp64 on `device`; non-finite if and only if an entry is.

    In fp32 the square of 1e-20 is 0 and that of 1e20 is Inf. Accelerators hence sum squares
    in fp64, which keeps pace with their memory. A CPU would take 25 times as long: there fp32
    comes first, and a norm outside [1e-12, 1e18] is taken again in fp64. (Inside, what the
    squares of up to 1e9 entries below 1e-19 could add is less than 1e-5.)

    >>> l2_norms([torch.full((4,), 1e30), torch.tensor([3.0, 4.0])], torch.device("cpu")).tolist()
    [2.0000000300000002e+30, 5.0]
    """
    if not tensors:
        return torch.zeros(0, dtype=torch.float64, device=device)
    real = [torch.view_as_real(one) if one.is_complex() else one for one in tensors]
    found: list[torch.Tensor | None] = [None] * len(real)
    first = [place for place, one in enumerate(real) if _fp32_first(one)]
    if first:
        norms = torch._foreach_norm([real[place] for place in first], dtype=torch.float32)
        for place, norm, value in zip(first, norms, torch.stack(norms).tolist(), strict=True):
            if _LOWEST <= value <= _HIGHEST or (value == 0 and not real[place].any()):
                found[place] = norm
    rest = [place for place, norm in enumerate(found) if norm is None]
    if rest:
        exact = torch._foreach_norm([real[place] for place in rest], dtype=torch.float64)
        for place, norm in zip(rest, exact, strict=True):
            found[place] = norm
    return torch.stack([norm.to(device, torch.float64) for norm in found if norm is not None])


def _fp32_first(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, *_HALF_PRECISIONS)
