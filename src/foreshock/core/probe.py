"""The contract of a probe: a fixed measurement of one capability."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar


class Probe(ABC):
    """Measures the same thing in the same way, before and after.

    Attributes:
        name: unique within the family; the file bears the same name.
        strengthened_by: the data that teaches the capability, for the advice that is given
            when it fell and nothing older can be gone back to; empty where the name says it.
    """

    name: ClassVar[str]
    strengthened_by: ClassVar[str] = ""

    @property
    def capability(self) -> str:
        """What is measured, unique among the probes of a run; the name where it says enough."""
        return self.name

    @abstractmethod
    def measure(self, model: Any) -> list[float]:
        """Return one value per item, lower is better, always in the same order.

        The caller has put the model into evaluation mode and keeps gradients off; the
        probe changes nothing and uses no global randomness.
        """

    def exact_share(self, model: Any) -> float | None:
        """The share of items that are wholly right, as a second figure; None where it has none.

        Nothing is decided by it. Called as `measure` is.
        """
        return None
