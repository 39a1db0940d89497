"""Which parameter groups have a second moment, of optimizers that need not be of one kind."""

from typing import Any


def is_adaptive(group: dict[str, Any]) -> bool:
    """Whether updates of a parameter group are divided by the root of a second moment.

    >>> is_adaptive({"betas": (0.9, 0.999)}), is_adaptive({"momentum": 0.95})
    (True, False)
    """
    return group.get("betas") is not None or "alpha" in group


def adaptive_group(optimizer: Any) -> dict[str, Any]:
    """The first group that has a second moment, else the first: others are taken to be as it."""
    groups: list[dict[str, Any]] = getattr(optimizer, "param_groups", None) or [{}]
    return next((group for group in groups if is_adaptive(group)), groups[0])
