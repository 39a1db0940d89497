"""Whether what an optimizer remembers is finite."""

import torch

from foreshock.ranks.placement import own_data


def has_finite_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether every number that an optimizer remembers is finite, as far as this rank holds it."""
    tensors = [
        own_data(value)
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    held = [one for one in tensors if one.numel()]
    if not held:
        return True
    sums = torch._foreach_norm(held, dtype=torch.float32)
    return bool(torch.isfinite(torch.stack([one.cpu() for one in sums])).all())
