"""Foreshock keeps large-model training runs stable.

It watches the signals that move before the loss does, names the cause, takes the
run back to a healthy state without losing data, and proves that the model is whole.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

PUBLIC = {
    "Guard": "foreshock.guard",
    "Watch": "foreshock.watching",
    "watch": "foreshock.watching",
    "Stream": "foreshock.data.stream",
    "Stage": "foreshock.data.stream",
    "Program": "foreshock.core.program",
    "Settings": "foreshock.core.program",
    "Loss": "foreshock.core.program",
    "Policy": "foreshock.core.policy",
    "Recipe": "foreshock.recipes",
    "open": "foreshock.run_data",
    "RunData": "foreshock.run_data",
    "ForeshockError": "foreshock.core.errors",
    "Halted": "foreshock.core.errors",
    "Stopped": "foreshock.core.errors",
}
"""Public names and the modules they live in; `__init__.pyi` is generated from it."""

__all__ = ["__version__", *PUBLIC]  # noqa: PLE0604 - the names above, resolved lazily


def __getattr__(name: str) -> Any:
    """Resolve public names when they are first used: importing Foreshock costs nothing."""
    if name in PUBLIC:
        return getattr(import_module(PUBLIC[name]), name)
    raise AttributeError(f"module 'foreshock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
