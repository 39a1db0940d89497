"""The contract of a fault: a failure injected on purpose, to prove that it is caught and undone.

A fault damages the data, the order of it, the live training state, or how the program computes.
It is its own configuration, draws every choice from the generator it is given, and names the
cause that a diagnosis must find. Written without torch: models and optimizers are `Any` here.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError
from foreshock.core.program import Program


@dataclass(frozen=True, kw_only=True)
class Fault(ABC):
    """An injected failure: a `DataFault`, `OrderFault`, `StateFault` or `ProgramFault`.

    Attributes:
        name: the name of the file the fault stands in.
        cause: the name of the cause that a diagnosis should rank first.
    """

    name: ClassVar[str]
    cause: ClassVar[str]

    def require_share(self, *settings: str) -> None:
        """Refuse settings that are not from 0 to 1.

        Raises:
            ConfigError: one of them is not, or is NaN.
        """
        for name in settings:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(
                    f"{type(self).__name__}.{name} is {getattr(self, name)}; it must be 0 to 1."
                )


class DataFault(Fault):
    """A failure of the data pipeline: samples come out damaged."""

    @abstractmethod
    def poison(self, windows: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return a damaged copy of `windows`, bytes of text: `[N, L]` to `[N, L]`.

        The argument is left as it was, and a window that the fault spares comes back
        unchanged. The same windows and the same generator state give the same bytes.
        """


class OrderFault(Fault):
    """A failure of the sampler: other samples come than are due."""

    @abstractmethod
    def reorder(self, first: int, num_samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Say which raw positions are read in the place of those that are due.

        Args:
            first: the first raw position that the fault touches; at least 1 lies before it.
            num_samples: how many are touched, from there on.
            rng: what every choice is drawn from.

        Returns:
            `[num_samples]` positions at least 0 and below `first + num_samples`.
        """


class StateFault(Fault):
    """A failure of the training state: a model or its optimizer is damaged in place."""

    @abstractmethod
    def inject(self, model: Any, optimizer: Any, rng: np.random.Generator) -> str:
        """Damage the state, after one optimizer step and before the next forward pass.

        Returns:
            What was damaged and by how much, in words.

        Raises:
            ConfigError: this model or optimizer holds nothing that the fault can damage.
        """


class ProgramFault(Fault):
    """A failure in how the program computes, from some step on: loss, precision, schedule.

    It lasts, other than a fault of the state: whoever trains on from any state with the changed
    program has it.
    """

    @abstractmethod
    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        """Change a program before its next step.

        Returns:
            The program to go on with, and what was changed, in words. Model, optimizer, stream
            and schedule are the same objects, changed in place where they must be (by hooks,
            or their settings); the loss may be another function.

        Raises:
            ConfigError: this program holds nothing that the fault can change.
        """
