"""The contract of a probe: a fixed measurement of one capability."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class Probe(ABC):
    """Measures the same thing in the same way, before and after.

    Attributes:
        name: unique within the family; the file bears the same name.
    """

    name: ClassVar[str]

    @abstractmethod
    def measure(self, model: Any) -> list[float]:
        """Return one value per item, lower is better, always in the same order.

        The caller has put the model into evaluation mode and keeps gradients off; the
        probe changes nothing and uses no global randomness.
        """
