"""The contract of a peer's rule: two traces in, one flag a step out."""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

Trace = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Peer(ABC):
    """A causal rule over the loss and the gradient norm; its fields are its configuration.

    Attributes:
        name: as the tool is known.
        signals: what the rule is meant for; it never looks at another.
        threshold: the one field that says how sensitive it is.
        neutral: the value of that field which a factor of zero would give: 0 for a number
            of deviations, 1 for a ratio to what is usual.
    """

    name: ClassVar[str]
    signals: ClassVar[tuple[str, ...]]
    threshold: ClassVar[str]
    neutral: ClassVar[float] = 0.0

    def prepare(self, signal: str, values: Trace) -> Any:
        """What the rule needs to know of a signal `[T, B]`, whatever its threshold is."""
        return values

    @abstractmethod
    def decide(self, prepared: dict[str, Any]) -> Flags:
        """The flagged steps `[T, B]`, from what `prepare` gave for each of `signals`."""

    @final
    def flags(self, loss: Trace, grad_norm: Trace) -> Flags:
        """The flagged steps of one run `[T]`, or of many at once `[T, B]`."""
        traces = {"loss": loss, "grad_norm": grad_norm}
        with np.errstate(all="ignore"):
            prepared = {
                name: self.prepare(name, traces[name].reshape(len(loss), -1))
                for name in self.signals
            }
            return self.decide(prepared).reshape(loss.shape)

    @final
    def scaled(self, factor: float) -> Self:
        """The same rule with its threshold `factor` times as far from neutral."""
        value = self.neutral + factor * (getattr(self, self.threshold) - self.neutral)
        return dataclasses.replace(self, **{self.threshold: value})
