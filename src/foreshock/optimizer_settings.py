"""An optimizer's settings: which can be overridden, and how that is done around one step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from foreshock.core.action import Capability
from foreshock.core.override import Tuning

_SECOND_MOMENT_ONLY = (
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adafactor,
)


def capabilities_of(
    optimizer: torch.optim.Optimizer, *, fused: bool, has_embeddings: bool
) -> frozenset[Capability]:
    """What can be done to the updates of an optimizer.

    Args:
        optimizer: any of `torch.optim`, or one that keeps its settings as they do.
        fused: whether it takes the gate's verdict on the device.
        has_embeddings: whether any parameter is known as an embedding.
    """
    groups = optimizer.param_groups
    has_moments = isinstance(optimizer, _SECOND_MOMENT_ONLY) or any(
        "betas" in group or group.get("momentum") for group in groups
    )
    found = {
        Capability.SKIP_UPDATE: True,
        Capability.SKIP_WITHOUT_HOST_WAIT: fused,
        Capability.SCALE_LR: True,
        Capability.TIGHTEN_CLIP: True,
        Capability.RAISE_EPSILON: all(_is_real(group.get("eps")) for group in groups),
        Capability.LOWER_BETA2: all(_has_beta2(group.get("betas")) for group in groups),
        Capability.SHRINK_EMBEDDING_GRADIENTS: has_embeddings,
        Capability.RESET_MOMENTS: has_moments,
        Capability.PERTURB_WEIGHTS: True,
    }
    return frozenset(one for one, there in found.items() if there)


@contextmanager
def overridden(
    optimizer: torch.optim.Optimizer, lr_factor: float, tuning: Tuning
) -> Iterator[None]:
    """Let an optimizer's groups have other settings inside the `with`, and their own after it.

    The very objects that were in the groups are put back, whatever happens inside.
    """
    before: list[tuple[dict[str, Any], str, Any]] = []

    def change(group: dict[str, Any], key: str, value: Any) -> None:
        before.append((group, key, group[key]))
        group[key] = value

    try:
        factor = lr_factor
        if tuning.lr_caps:
            rate = float(optimizer.param_groups[0]["lr"]) * lr_factor
            used = tuning.lr(rate)
            factor = lr_factor if used == rate else lr_factor * (used / rate)
        for group in optimizer.param_groups:
            if factor != 1.0:
                change(group, "lr", group["lr"] * factor)
            if tuning.eps_factor > 1 or tuning.eps_least > 0:
                change(group, "eps", tuning.eps(group["eps"]))
            if tuning.beta2_most < 1:
                *others, beta2 = group["betas"]
                change(group, "betas", (*others, _at_most(beta2, tuning.beta2_most)))
        yield
    finally:
        for group, key, value in reversed(before):
            group[key] = value


def _at_most(value: Any, most: float) -> Any:
    return value.clamp(max=most) if isinstance(value, torch.Tensor) else min(value, most)


def _is_real(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _has_beta2(betas: object) -> bool:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        return False
    return all(isinstance(one, torch.Tensor) or _is_real(one) for one in betas)
