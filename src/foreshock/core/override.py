"""Overrides: what holds in a range of steps and is never rewound, and edits at one step.

All are values. They are rebuilt from the journal, so that what they say of a step is the same
in every attempt: replaying the steps before one of them stays exact.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, Self, cast, final, runtime_checkable

from foreshock.core.errors import ConfigError
from foreshock.core.reading import from_json_number, from_json_text, from_json_whole

MAX_HOLD_STEPS: Final = 1 << 40
"""Our choice: beyond any run, and within what steps are counted in."""


@dataclass(frozen=True, kw_only=True)
class Override:
    """What one action orders. A frozen dataclass; its fields are those of its journal record.

    Attributes:
        kind: of the record.
    """

    kind: ClassVar[str]
    first_step: int

    def __post_init__(self) -> None:
        self.require(self.first_step >= 0, "first_step", "at least 0")

    def require(self, fine: bool, field: str, allowed: str) -> None:
        """Refuse the value of a field.

        Raises:
            ConfigError: it is not `fine`.
        """
        if not fine:
            value = getattr(self, field)
            raise ConfigError(
                f"{type(self).__name__}.{field} is {value!r:.80}; it must be {allowed}"
            )

    def to_json(self) -> dict[str, Any]:
        """The fields of its record."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Undo `to_json`; other fields of the record are passed over.

        Raises:
            KeyError, ValueError, ConfigError: a field is missing, or not what a run writes.
        """
        given: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name in record or field.default is dataclasses.MISSING:
                given[field.name] = _value(field.type, record[field.name])
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class Spanning(Override):
    """Holds from `first_step` for `hold_steps`, then is taken back over `ramp_steps`.

    Its weight is 1 while it holds and falls by `1/ramp_steps` a step after that, so that it
    is gone from the `ramp_steps`-th step on: linear, as rates are warmed up. GLM-130B took
    back its shrunk embedding gradients linearly too, over 500 steps.

    Args:
        first_step: first step that it holds for.
        hold_steps: how many steps it holds in full; None is until the end.
        ramp_steps: over how many it is taken back; 0 and 1 are at once.

    Reference: Goyal et al. 2017, 2.2 (gradual warm-up); Zeng et al. 2022, GLM-130B, and its
    training log (alpha from 0.1 to 1 in 500 steps).
    """

    hold_steps: int | None = None
    ramp_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        held = 1 if self.hold_steps is None else self.hold_steps
        self.require(1 <= held <= MAX_HOLD_STEPS, "hold_steps", "at least 1 step, or None")
        self.require(0 <= self.ramp_steps <= MAX_HOLD_STEPS, "ramp_steps", "0 or more steps")

    def weight(self, step: int) -> float:
        """How far it holds at a step, from 0 to 1.

        >>> lower = LRFactor(factor=0.5, first_step=10, hold_steps=2, ramp_steps=4)
        >>> [lower.weight(step) for step in range(9, 16)]
        [0.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
        """
        if step < self.first_step:
            return 0.0
        if self.hold_steps is None:
            return 1.0
        over = step - (self.first_step + self.hold_steps - 1)
        if over <= 0:
            return 1.0
        return max(0.0, 1.0 - over / self.ramp_steps) if self.ramp_steps else 0.0

    def share(self, factor: float, step: int) -> float:
        """A factor at a step: `factor` where this holds in full, and linearly back to 1."""
        weight = self.weight(step)
        return factor if weight == 1 else 1.0 + weight * (factor - 1.0)

    @property
    def span(self) -> str:
        """The steps that it holds for, in words."""
        if self.hold_steps is None:
            return f"from step {self.first_step} on"
        text = f"from step {self.first_step} to {self.first_step + self.hold_steps - 1}"
        return text + (f", and back over {self.ramp_steps} steps" if self.ramp_steps > 1 else "")


@final
@dataclass(frozen=True, kw_only=True)
class GateLimit(Override):
    """Updates with a gradient norm above `limit` are skipped, `last_step` included."""

    kind: ClassVar[str] = "gate_limited"
    limit: float
    last_step: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(math.isfinite(self.limit), "limit", "finite")


@final
@dataclass(frozen=True, kw_only=True)
class LRFactor(Spanning):
    """Learning rates are multiplied by `factor`."""

    kind: ClassVar[str] = "lr_scaled"
    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.factor <= 1, "factor", "in (0, 1]")


@final
@dataclass(frozen=True, kw_only=True)
class LRCap(Spanning):
    """The learning rate of the first group is at most `max_lr`, factors on it included.

    The other groups keep their proportion to it.
    """

    kind: ClassVar[str] = "lr_capped"
    max_lr: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.max_lr < math.inf, "max_lr", "above 0, and finite")


@final
@dataclass(frozen=True, kw_only=True)
class ClipLimit(Spanning):
    """Gradients are clipped to `max_norm`, or to the loop's own clip where that is lower."""

    kind: ClassVar[str] = "clip_tightened"
    max_norm: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.max_norm < math.inf, "max_norm", "above 0, and finite")


@final
@dataclass(frozen=True, kw_only=True)
class RaisedEpsilon(Spanning):
    """The optimizer's eps is `factor` times its own, and at least `least`."""

    kind: ClassVar[str] = "epsilon_raised"
    factor: float = 1.0
    least: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(1 <= self.factor < math.inf, "factor", "at least 1, and finite")
        self.require(0 <= self.least < math.inf, "least", "0 or more, and finite")
        self.require(self.factor > 1 or self.least > 0, "factor", "above 1 where least is 0")


@final
@dataclass(frozen=True, kw_only=True)
class LoweredBeta2(Spanning):
    """The optimizer's beta2 is at most `value`."""

    kind: ClassVar[str] = "beta2_lowered"
    value: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.value < 1, "value", "between 0 and 1")


@final
@dataclass(frozen=True, kw_only=True)
class EmbeddingFactor(Spanning):
    """Gradients of embeddings are multiplied by `factor` before anything is clipped."""

    kind: ClassVar[str] = "embedding_gradients_shrunk"
    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.factor <= 1, "factor", "in (0, 1]")


@final
@dataclass(frozen=True, kw_only=True)
class MomentReset(Override):
    """Just before `first_step` moments are set to zero, in all module groups or some.

    Args:
        first_step: the step that begins with them at zero.
        groups: module groups, each with those below it; empty for all.
        restart_count: whether the update count of the bias correction begins anew too.
    """

    kind: ClassVar[str] = "moments_reset"
    groups: Sequence[str] = ()
    restart_count: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.first_step >= 1, "first_step", "at least 1")


@final
@dataclass(frozen=True, kw_only=True)
class WeightNoise(Override):
    """Just before `first_step` each weight gets noise of `relative_std` times its tensor's RMS."""

    kind: ClassVar[str] = "weights_perturbed"
    relative_std: float
    seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.first_step >= 1, "first_step", "at least 1")
        self.require(0 < self.relative_std < 1, "relative_std", "between 0 and 1")
        self.require(0 <= self.seed < 1 << 53, "seed", "a whole number below 2**53")


@runtime_checkable
class Reorderable(Protocol):
    """A stream whose order can be changed from a raw position on."""

    def reorder_from(self, position: int, seed: int) -> None:
        """Give out what lies from `position` on in another order, none twice and none never.

        Every position before it keeps its sample. Several calls apply one after the other.
        It is never rewound: the same calls in the same order rebuild it.
        """
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How the update of one step differs from what the loop was built with.

    The factor on the rate and the gate are apart. The default changes nothing.

    Attributes:
        lr_caps: (max_lr, weight) of every cap on the rate that holds to some part.
        clips: (max_norm, weight) of every clip that holds to some part.
        eps_factor: what the optimizer's eps is multiplied by.
        eps_least: what it then is at least.
        beta2_most: what the optimizer's beta2 is at most.
        embedding_factor: what gradients of embeddings are multiplied by.
    """

    lr_caps: tuple[tuple[float, float], ...] = ()
    clips: tuple[tuple[float, float], ...] = ()
    eps_factor: float = 1.0
    eps_least: float = 0.0
    beta2_most: float = 1.0
    embedding_factor: float = 1.0

    def lr(self, rate: float) -> float:
        """What a learning rate of the first group becomes; the very same where no cap bites.

        A cap of weight w takes the share w of what is too much.

        >>> Tuning(lr_caps=((0.5, 0.5),)).lr(1.0), Tuning(lr_caps=((0.5, 0.5),)).lr(0.4)
        (0.75, 0.4)
        """
        capped = (cap + (1 - w) * (rate - cap) for cap, w in self.lr_caps if rate > cap)
        return min(capped, default=rate)

    def max_norm(self, own: float | None) -> float | None:
        """The largest gradient norm of the step; None for no clipping.

        A clip of weight w is 1 / (w / max_norm + (1 - w) / own): the way back is linear in
        the inverse, because it ends where there is no clip at all if the loop has none.

        >>> Tuning(clips=((0.5, 0.5),)).max_norm(1.0), Tuning(clips=((0.5, 0.5),)).max_norm(None)
        (0.6666666666666666, 1.0)
        """
        inverse = 0.0 if own is None else 1.0 / own
        norms = [n if w == 1 else 1.0 / (w / n + (1 - w) * inverse) for n, w in self.clips]
        if own is not None:
            norms.append(own)
        return min(norms, default=None)

    def eps(self, own: float) -> float:
        """The optimizer's eps in the step."""
        return max(own * self.eps_factor, self.eps_least, own)


AS_BUILT: Final = Tuning()

KINDS: Final[Mapping[str, type[Override]]] = {
    kind.kind: kind
    for kind in (
        GateLimit,
        LRFactor,
        LRCap,
        ClipLimit,
        RaisedEpsilon,
        LoweredBeta2,
        EmbeddingFactor,
        MomentReset,
        WeightNoise,
    )
}
"""Kind of journal record to the override that it holds."""


def _value(declared: object, value: object) -> Any:
    """A field's value of the type that its dataclass declares.

    Raises:
        ValueError: it is of another.
    """
    if declared == int | None and value is None:
        return None
    if declared in (int, int | None):
        return from_json_whole(value)
    if declared is float:
        return from_json_number(value)
    if declared is bool and isinstance(value, bool):
        return value
    if declared == Sequence[str] and isinstance(value, list | tuple):
        return tuple(from_json_text(one) for one in cast("Sequence[object]", value))
    raise ValueError(f"expected {declared}, got {value!r:.80}")
