"""The contract of what is compared: something that looks on while a loop trains."""

import importlib
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmarks.overhead.clock import Clock
from benchmarks.overhead.training import Training

MONITOR = "monitor"
SHARED = "shared clip"
"""A monitor's pass that takes the place of the plain loop's clip."""


class NotRunnableError(Exception):
    """A monitor cannot be run here; its text says why."""


def installed(module: str) -> Any:
    """A module of another tool.

    Raises:
        NotRunnableError: it cannot be imported here.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotRunnableError(f"not installed here: {error}") from error


class Monitor:
    """Looks on at one training. Every method here is the monitor's own time, and counted.

    The methods are called in the order in which they stand. A monitor that calls back into
    the training's own work opens a label of the training on `self.clock` around it.

    Attributes:
        name: what it is called in the results.
        package: the distribution that it comes from, whose version is reported.
        notes: how it was run, and what of it is not counted.
        clips: whether `clip` replaces the plain loop's clip.
    """

    name: str
    package: ClassVar[str | None] = None
    notes: ClassVar[str] = ""
    clips: bool = False

    clock: Clock

    def optimizer_class(self) -> type[torch.optim.AdamW]:
        """The optimizer to train with: AdamW, with whatever methods the monitor looks for.

        Raises:
            NotRunnableError: it cannot be run here.
        """
        return torch.optim.AdamW

    def attach(self, training: Training, folder: Path) -> None:
        """Begin to watch; `folder` is for what it writes.

        Raises:
            NotRunnableError: it cannot be run here.
        """

    def before_forward(self) -> None: ...

    def after_forward(self, loss: torch.Tensor) -> None: ...

    def after_backward(self, loss: torch.Tensor) -> None: ...

    def clip(self, limit: float) -> None: ...

    def before_update(self) -> None: ...

    def after_update(self) -> None:
        """The weights have moved; the gradients are still there."""

    def close(self) -> None: ...

    def due(self, step: int) -> str:
        """What is measured in this optimizer step and not in every one, in words."""
        return ""

    def period(self) -> int:
        """Steps after which `due` repeats."""
        return 1

    def facts(self) -> dict[str, Any]:
        """What was counted, for the results."""
        return {}


class Plain(Monitor):
    """Nothing looks on."""

    name = "plain"
