"""Whether what an optimizer remembers is finite."""

from collections.abc import Iterable

import torch

from foreshock.ranks.placement import own_data


def has_finite_state(
    optimizer: torch.optim.Optimizer, buffers: Iterable[torch.Tensor] = ()
) -> bool:
    """Whether every number that an optimizer remembers is finite, as far as this rank holds it.

    And none in a model's buffers a NaN, which a forward may leave there (batch statistics) whose
    update was skipped; an Inf may be meant (masks).
    """
    floating = [own_data(one) for one in buffers if one.is_floating_point() and one.numel()]
    if floating and any(bool(torch.isnan(one)) for one in torch._foreach_norm(floating)):
        return False
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
