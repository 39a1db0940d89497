"""The contract of a fault: a failure injected on purpose, to prove that it is caught and undone.

A fault damages either the data or the live training state. It is its own configuration, draws
every choice from the generator it is given, and names the cause that a diagnosis must find.
Written without torch: models and optimizers are `Any` here.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Fault(ABC):
    """An injected failure: a `DataFault` or a `StateFault`.

    Attributes:
        name: the name of the file the fault stands in.
        cause: the name of the cause that a diagnosis should rank first.
    """

    name: ClassVar[str]
    cause: ClassVar[str]


class DataFault(Fault):
    """A failure of the data pipeline: samples come out damaged."""

    @abstractmethod
    def poison(self, windows: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return a damaged copy of `windows`, bytes of text: `[N, L]` to `[N, L]`.

        The argument is left as it was, and a window that the fault spares comes back
        unchanged. The same windows and the same generator state give the same bytes.
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
