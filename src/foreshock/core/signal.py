"""The contract of a signal: what is measured, when, how exactly, and at what cost.

Written without torch: a tensor is `Any` here, since only the one file that measures
needs to know what it is.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar


class Exactness(StrEnum):
    """How far a recorded value can be trusted."""

    EXACT = "exact"
    BOUND = "bound"
    SAMPLED = "sampled"


class Phase(StrEnum):
    """When in a step a signal is measured.

    GRADIENT is just before the update, with every gradient present and unscaled;
    UPDATE is just after it. A signal of the update can cause a rollback, but never a
    skip, and says nothing in a step that was skipped.
    """

    GRADIENT = "gradient"
    UPDATE = "update"


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where signals are attached.

    Attributes:
        model: the module that is trained.
        optimizer: its optimizer.
        scaler: the gradient scaler, or None.
        clip: the largest gradient norm, or None.
        parameters: (path, parameter) of every parameter that the optimizer trains,
            each once, in the optimizer's order.
        terms: names of the loss terms that the program reports.
    """

    model: Any
    optimizer: Any
    scaler: Any = None
    clip: float | None = None
    parameters: tuple[tuple[str, Any], ...] = ()
    terms: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Moment:
    """What a step offers to its signals; tensors stay on the device.

    Attributes:
        loss: `[]` mean loss of the step, detached.
        grad_norms: `[P]` L2 norm of each parameter's gradient, before clipping (0
            where a parameter has no gradient).
        grad_norm: `[]` L2 norm of them all.
        lr: learning rate that the update uses, overrides included.
        terms: each loss term, `[]`.
    """

    loss: Any
    grad_norms: Any
    grad_norm: Any
    lr: float
    terms: dict[str, Any] = field(default_factory=dict[str, Any])


class Attached(ABC):
    """A signal attached to one model.

    Attributes:
        series: names of the values that `measure` returns, `signal/scope`, `[S]`.
    """

    series: tuple[str, ...]

    @abstractmethod
    def measure(self, moment: Moment) -> Any:
        """Return the values of this step: a tensor `[S]` or S numbers; waits for nothing."""

    def prepare(self, moment: Moment) -> None:  # noqa: B027 - most signals need no preparation
        """Called just before the update, for signals that compare before with after."""

    def detach(self) -> None:  # noqa: B027 - most signals leave nothing behind
        """Leave the model exactly as it was."""

    def state_dict(self) -> dict[str, Any]:
        """State to be rewound with the weights; most signals have none."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take back what `state_dict` gave."""


class Signal(ABC):
    """What can be measured: a frozen keyword-only dataclass, its fields its configuration.

    Attributes:
        name: unique within the family; the file bears the same name.
        unit: unit of the values ("1" for a pure number).
        phase: when it is measured.
        exactness: exact, a bound, or a sample.
        passes: the passes over memory it costs, in words.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    phase: ClassVar[Phase]
    exactness: ClassVar[Exactness]
    passes: ClassVar[str]

    @abstractmethod
    def attach(self, site: Site) -> Attached | None:
        """Attach to a model; None where there is nothing to measure (no scaler, no norm layer)."""
