"""The contract of a signal: what is measured, when, how exactly, and at what cost.

Written without torch: a tensor is `Any` here, since only the one file that measures
needs to know what it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from foreshock.core.errors import ConfigError
from foreshock.core.groups import Groups
from foreshock.core.meter import Args, Meter, Result
from foreshock.core.names import module_group

Values = npt.NDArray[np.float64]

_MISSING_BITS: Final = np.uint64(0x7FF8BDDA00000000)

MISSING: Final = float(np.array(_MISSING_BITS).view(np.float64)[()])
"""What `Attached.finish` returns where nothing was seen in this step: a NaN that no computation
gives, recorded as absent rather than as a NaN that was measured. Place it, never compute it."""


def is_missing(values: Values) -> npt.NDArray[np.bool_]:
    """Where values of any shape are MISSING, by their bits."""
    return np.ascontiguousarray(values).view(np.uint64) == _MISSING_BITS


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


class Level(StrEnum):
    """How much is recorded; each level holds the one before it.

    MINIMAL costs nothing beyond the clip's own pass. STANDARD adds what moves before the
    loss does, by bounds and samples. FULL adds what is asked for when something is wrong.
    """

    MINIMAL = "minimal"
    STANDARD = "standard"
    FULL = "full"

    def holds(self, other: "Level") -> bool:
        """Whether this level records what belongs to the other."""
        order = tuple(Level)
        return order.index(other) <= order.index(self)


class Reduction(StrEnum):
    """How the partial values of several ranks become one.

    SAME: every rank has the whole value (replicas). NORM: root of the sum of squares of
    shards. EACH: they stay apart, and `finish` gets one column a rank in place of one.
    """

    SAME = "same"
    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"
    NORM = "norm"
    EACH = "each"


class Clock:
    """The optimizer step that is being computed now, and whether a signal is due in it."""

    def __init__(self) -> None:
        self.step = 1

    def is_due(self, interval_steps: int) -> bool:
        """Whether something measured every `interval_steps` steps is measured in this one."""
        return self.step % interval_steps == 0


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where signals are attached.

    Attributes:
        model: the module that is trained.
        optimizer: its optimizer.
        scaler: the gradient scaler, or None.
        clip: the largest gradient norm, or None.
        parameters: (path, parameter) of every parameter that the optimizer trains,
            each once, in the optimizer's order; paths without wrappers.
        terms: names of the loss terms that the program reports.
        per_sample: whether it reports the loss of each sample.
        groups: the module group of each parameter, `[P]`; by their paths if empty.
        sharded: whether each parameter is spread over ranks, `[P]`; empty if none is.
        share_of_copies: what the norm of each local part is multiplied by before the sum over
            ranks, `[P]`: `num_copies ** -0.5`, of parameters that are not spread too; empty
            where none is.
        anatomy: the model's parts, a `foreshock.anatomy.Anatomy`.
        clock: the step in progress.
        meter: adds up what signals cost, if anybody asks.
        shared: what several signals of this attachment share, by the module that makes it.
    """

    model: Any
    optimizer: Any
    scaler: Any = None
    clip: float | None = None
    parameters: tuple[tuple[str, Any], ...] = ()
    terms: tuple[str, ...] = ()
    per_sample: bool = False
    groups: tuple[str, ...] = ()
    sharded: tuple[bool, ...] = ()
    share_of_copies: tuple[float, ...] = ()
    anatomy: Any = None
    clock: Clock = field(default_factory=Clock)
    meter: Meter | None = None
    shared: dict[str, Any] = field(default_factory=dict[str, Any])

    def timed(self, name: str, function: Callable[Args, Result]) -> Callable[Args, Result]:
        """The function, timed under a signal's name if anybody asks for the cost."""
        return function if self.meter is None else self.meter.wrap(name, function)

    @property
    def is_scaled(self) -> bool:
        """Whether the loss is scaled."""
        return self.scaler is not None and bool(self.scaler.is_enabled())

    def loss_scale(self) -> Any:
        """The present loss scale: a tensor `[]` if there is one, since a number is waited for."""
        scale = getattr(self.scaler, "_scale", None)
        return scale if hasattr(scale, "device") else self.scaler.get_scale()

    def group_table(self) -> Groups:
        """The module groups of the parameters, and how norms are summed over them."""
        groups = self.groups or tuple(module_group(path) for path, _ in self.parameters)
        return Groups(groups, self.num_elements())

    def num_elements(self) -> list[int]:
        """Elements of each parameter, `[P]`; a complex one has two."""
        return [one.numel() * (2 if one.is_complex() else 1) for _, one in self.parameters]

    def norm_reductions(self) -> "list[Reduction]":
        """How norms of the parameters, one each, are joined over ranks, `[P]`."""
        kind = Reduction.NORM if any(self.sharded) else Reduction.SAME
        return [kind] * len(self.parameters)


@dataclass(kw_only=True)
class Moment:
    """What a step offers to its signals; tensors stay on the device.

    Attributes:
        step: optimizer step that is being made.
        loss: `[]` mean loss of the step, detached.
        grad_norms: `[P]` L2 norm of each parameter's gradient, before clipping (0
            where a parameter has no gradient); of this rank's shard where it is sharded.
        grad_largest: `[P]` largest magnitude of each gradient likewise, if the pass for the norms
            tells; else None.
        grad_num_zeros: `[P]` entries of each that are zero, of this rank's shard; likewise.
        grad_norm: `[]` L2 norm of them all, over all ranks; None where that would take a
            collective of its own, and nothing is clipped or gated by it.
        lr: learning rate that the update uses, overrides included.
        clip: largest gradient norm that this step is clipped to, or None.
        terms: each loss term, `[]`.
        samples_loss: `[B]` loss of each sample, or None.
        true_factor: what gradients in memory are multiplied by to be the true ones, neither
            clipped nor scaled: `[]` or a number.
        used_factor: what they are multiplied by to be those that the optimizer uses.
    """

    step: int = 1
    loss: Any
    grad_norms: Any
    grad_norm: Any
    grad_largest: Any = None
    grad_num_zeros: Any = None
    lr: float
    clip: float | None = None
    terms: dict[str, Any] = field(default_factory=dict[str, Any])
    samples_loss: Any = None
    true_factor: Any = 1.0
    used_factor: Any = 1.0


class Attached(ABC):
    """A signal attached to one model.

    The device computes *partials* `[K]`, as few and as raw as can be; after ranks are joined
    and the host has them, `finish` makes of them the values `[S]` of the series.

    Attributes:
        series: names of the values that `finish` returns, `signal/scope`, `[S]`.
        reductions: how each partial is joined over ranks, `[K]`; empty means SAME for all.
        needs_true_gradients: measured already before a loop clips by itself, where that is told;
            the moment then has no loss, and its true factor is of that time.
    """

    series: tuple[str, ...]
    reductions: Sequence[Reduction] = ()
    needs_true_gradients: bool = False

    @abstractmethod
    def measure(self, moment: Moment) -> Any:
        """Return the partials of this step: a tensor or array `[K]`, or K numbers.

        Waits for no accelerator.
        """

    def finish(self, partials: Values, committed: bool) -> Values:
        """Make the series' values `[S]` of partials `[K]`, on the host, in step order.

        `committed` tells whether the step's update was made. MISSING stands where nothing was
        seen. By default the partials are the values.
        """
        return partials

    def prepare(self, moment: Moment) -> None:  # noqa: B027 - most signals need no preparation
        """Called just before the update, for signals that compare before with after."""

    def detach(self) -> None:  # noqa: B027 - most signals leave nothing behind
        """Leave the model exactly as it was."""

    def notes(self) -> dict[str, str]:
        """What is not as hoped for, by scope: "not observed: …", a fallback, a wider error."""
        return {}

    def findings(self) -> list[str]:
        """Sentences about what `finish` has found since this was last asked; none usually."""
        return []

    def forget(self) -> None:  # noqa: B027 - most signals gather nothing within a step
        """Drop what was gathered of a step that will not be completed, or was undone."""

    def state_dict(self) -> dict[str, Any]:
        """State to be rewound with the weights; most signals have none."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take back what `state_dict` gave."""


@dataclass(frozen=True, kw_only=True)
class Signal(ABC):
    """What can be measured: a frozen keyword-only dataclass, its fields its configuration.

    Attributes:
        name: unique within the family; the file bears the same name.
        unit: unit of the values ("1" for a pure number).
        phase: when it is measured.
        exactness: exact, a bound, or a sample.
        passes: the passes over memory it costs, in words.
        level: the lowest level that records it.
        at_full: settings that it takes at level full.

    Args:
        interval_steps: steps from one measurement to the next; the series have no value
            in between. 1 measures every step.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    phase: ClassVar[Phase]
    exactness: ClassVar[Exactness]
    passes: ClassVar[str]
    level: ClassVar[Level] = Level.STANDARD
    at_full: ClassVar[Mapping[str, Any]] = {}
    interval_steps: int = 1

    def __post_init__(self) -> None:
        self.require_at_least(1, "interval_steps")

    def require_at_least(self, least: int, *settings: str) -> None:
        """Refuse settings below a whole number.

        Raises:
            ConfigError: one of them is.
        """
        for name in settings:
            if getattr(self, name) < least:
                raise ConfigError(
                    f"{type(self).__name__}.{name} is {getattr(self, name)}; it must be at least "
                    f"{least}"
                )

    @abstractmethod
    def attach(self, site: Site) -> Attached | None:
        """Attach to a model; None where there is nothing to measure (no scaler, no norm layer)."""
