"""The contract of a detector: a pure rule over one signal, and the alarm it raises."""

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError
from foreshock.core.names import split_series
from foreshock.core.reading import from_json_number, json_number

Steps = NDArray[np.int64]
Values = NDArray[np.float64]


ONSET_REACH_STEPS = 100
"""An alarm's onset lies no further back. A series may hover above its onset limit for long
without alarming; going back beyond all of that would cost more than it mends."""


class AlarmKind(StrEnum):
    """What sort of departure from health an alarm reports."""

    NONFINITE = "nonfinite"
    SPIKE = "spike"
    ELEVATION = "elevation"
    SHIFT = "shift"
    DRIFT = "drift"
    DIVERGENCE = "divergence"
    PLATEAU = "plateau"
    COLLAPSE = "collapse"
    IMBALANCE = "imbalance"
    SATURATION = "saturation"
    DISCONTINUITY = "discontinuity"
    RECURRENCE = "recurrence"
    DESYNC = "desync"


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """One departure of one series, with the numbers that made it one.

    Attributes:
        kind: the sort of departure.
        detector: name of the rule that raised it.
        series: `signal/scope`.
        step: the step of the offending value.
        onset_step: first step of the present excursion as far as the rule can see
            without looking ahead; never after `step`.
        value: the offending value, in the signal's unit; may be NaN or Inf.
        baseline: what the rule expected (NaN where it had no expectation).
        threshold: the value beyond which the rule alarms (NaN where there is none).
    """

    kind: AlarmKind
    detector: str
    series: str
    step: int
    onset_step: int
    value: float
    baseline: float = math.nan
    threshold: float = math.nan

    @property
    def signal(self) -> str:
        """The signal part of the series name."""
        return split_series(self.series)[0]

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        fields = dataclasses.asdict(self)
        for name in ("value", "baseline", "threshold"):
            fields[name] = json_number(fields[name])
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Alarm":
        """Undo `to_json`."""
        rest: dict[str, Any] = {**fields, "kind": AlarmKind(fields["kind"])}
        for name in ("value", "baseline", "threshold"):
            rest[name] = from_json_number(fields[name])
        return cls(**rest)


class Threshold(NamedTuple):
    """Where one series stands: what is expected, and beyond what an alarm is raised.

    Both are NaN while the rule is still warming up: `steps_until_ready` says how
    many more finite values it needs (0 once it watches).
    """

    baseline: float
    limit: float
    steps_until_ready: int


class Detector(ABC):
    """A pure rule over one signal, live and over a log alike.

    A detector is a frozen keyword-only dataclass: its fields are its configuration.
    Its memory is a separate value. The primitive is a block of steps; live is a
    block of one, a log is one large block, and any splitting of the same values
    gives identical alarms. Every detector keeps these promises (tested for each):

    - a non-finite value never enters a baseline;
    - a value that was flagged never enters the baseline either, until
      `rebaseline_after_steps` consecutive flagged values have been seen: then the
      new level is accepted and reported once as a shift;
    - alarms are causal, and come sorted by step, then by series.

    Attributes:
        name: unique within the family; the file bears the same name.
        watches: signals that the rule is meant for; the monitor attaches it to these.
        every_scope: whether it watches each module group too, or the whole run only.
        advisory: its alarms are recorded and shown, and weigh in a diagnosis, but open no
            episode: nothing is rolled back because a run has stopped improving.
        looks_across: whether what one series does can raise or hold an alarm of another.
    """

    name: ClassVar[str]
    advisory: ClassVar[bool] = False
    looks_across: ClassVar[bool] = False
    watches: tuple[str, ...]
    every_scope: bool

    @abstractmethod
    def init(self, series: Sequence[str]) -> Any:
        """Return a fresh state for these series (`[S]`, in the order of the columns)."""

    @abstractmethod
    def update(self, state: Any, steps: Steps, values: Values) -> tuple[Any, list[Alarm]]:
        """Take in a block and return the new state with the alarms.

        Args:
            state: from `init` or an earlier `update`; may be consumed.
            steps: `[T]` int64, increasing.
            values: `[T, S]` float64, one column a series.
        """

    def update_step(self, state: Any, step: int, row: list[float]) -> tuple[Any, list[Alarm]]:
        """Take in one step, `[S]` values, as `update` does a block of one: the live path."""
        return self.update(state, np.array([step], np.int64), np.array([row], np.float64))

    @abstractmethod
    def thresholds(self, state: Any) -> list[Threshold]:
        """Return where each series stands after the last update, `[S]`.

        A rule that needs several values to alarm has no limit for one: infinity.
        """

    def require_at_least(self, least: int, *settings: str) -> None:
        """Refuse settings below a whole number.

        Raises:
            ConfigError: one of them is.
        """
        for name in settings:
            if getattr(self, name) < least:
                raise ConfigError(
                    f"{self.name}.{name} is {getattr(self, name)}; it must be at least {least}"
                )

    def require_positive(self, *settings: str) -> None:
        """Refuse settings that are not above 0 and finite.

        Raises:
            ConfigError: one of them is not, or is NaN.
        """
        for name in settings:
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{self.name}.{name} is {getattr(self, name)}; it must be above 0"
                )

    def require_above_one(self, *settings: str) -> None:
        """Refuse ratios that are not above 1 and finite.

        Raises:
            ConfigError: one of them is not, or is NaN.
        """
        for name in settings:
            if not 1 < getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{self.name}.{name} is {getattr(self, name)}; it must be above 1, and finite"
                )

    def resumed(self, state: Any) -> Any:
        """Return the state after a restart of the run: what follows was computed by a new
        process, from a checkpoint. Most rules do not care."""
        return state


def copy_state(state: Any) -> Any:
    """Return an independent copy of a detector's state."""
    return copy.deepcopy(state)


@dataclass(slots=True)
class Column:
    """The memory of a scalar rule for one series: what every such rule must remember.

    Attributes:
        series: `signal/scope`.
        excursion_start: first step of the present excursion, None while in range.
        flagged: finite values flagged in a row; they become the new baseline if
            they persist.
    """

    series: str
    excursion_start: int | None = None
    flagged: list[float] = dataclasses.field(default_factory=list[float])


C = TypeVar("C", bound=Column)

_FIRST_STRETCH, _LAST_STRETCH = 64, 65536
_SLOW_STRETCH, _LAST_SLOW_STRETCH = 16, 1024
"""Values seen one by one where a skim stopped, before the next is tried."""
_WORTH_STEPS = 512
"""Skims that take in fewer between two stops have not saved much: each costs as much as
seeing a few hundred."""


class ScalarDetector(Detector, Generic[C]):
    """A detector whose rule looks at one series at a time.

    A concrete rule gives `start` (a fresh column) and `see` (one value), and this
    class lifts it to blocks of many series. `see` is the truth; `skim` may do the same
    faster for values that raise no alarm.
    """

    @abstractmethod
    def start(self, series: str) -> C:
        """Return the memory for a series that nothing is known of yet."""

    @abstractmethod
    def see(self, column: C, step: int, value: float) -> Alarm | None:
        """Take in one value, changing `column`, and return the alarm if there is one."""

    @abstractmethod
    def threshold(self, column: C) -> Threshold:
        """Return where the series stands."""

    def skim(self, column: C, steps: Steps, values: NDArray[np.float64]) -> int:
        """Take in leading values of a block that certainly raise no alarm, and say how many.

        The column must end as if `see` had been given each of them; 0 takes in none.

        Args:
            steps: `[T]` int64, increasing.
            values: `[T]` float64 of one series.
        """
        return 0

    def see_row(self, state: list[C], step: int, row: list[float]) -> list[Alarm]:
        """Take in one value of each series, as if `see` had been given each, `[S]`."""
        alarms: list[Alarm] = []
        for place, value in enumerate(row):
            alarm = self.see(state[place], step, value)
            if alarm is not None:
                alarms.append(alarm)
        return alarms

    def init(self, series: Sequence[str]) -> list[C]:
        return [self.start(name) for name in series]

    def update_step(
        self, state: list[C], step: int, row: list[float]
    ) -> tuple[list[C], list[Alarm]]:
        return state, self.see_row(state, step, row)

    def update(self, state: list[C], steps: Steps, values: Values) -> tuple[list[C], list[Alarm]]:
        if values.shape != (len(steps), len(state)):
            raise ValueError(
                f"{self.name}: values have shape {values.shape}, expected "
                f"({len(steps)} steps, {len(state)} series)"
            )
        if len(steps) == 1:
            return state, self.see_row(state, steps.item(), values.tolist()[0])
        alarms: list[tuple[int, int, Alarm]] = []
        for place, column in enumerate(state):
            for row, alarm in self._scan(column, steps, np.ascontiguousarray(values[:, place])):
                alarms.append((row, place, alarm))
        alarms.sort(key=lambda found: found[:2])
        return state, [alarm for _, _, alarm in alarms]

    def _scan(
        self, column: C, steps: Steps, values: NDArray[np.float64]
    ) -> Iterator[tuple[int, Alarm]]:
        """The alarms of one series over a block, each with its row.

        Skims ahead in stretches that double while nothing alarms and start short after an
        alarm. What follows a skim that came to little is seen one by one, for longer each
        time: a calm series is fast, and a wild one not much slower than one by one.
        """
        row, stretch, slow, num_rows = 0, _FIRST_STRETCH, _SLOW_STRETCH, len(steps)
        seen_up_to = 0
        while row < num_rows:
            end = min(row + stretch, num_rows)
            row += self.skim(column, steps[row:end], values[row:end])
            if row == end:
                stretch = min(2 * stretch, _LAST_STRETCH)
                continue
            stretch = _FIRST_STRETCH
            worth = row - seen_up_to >= _WORTH_STEPS
            slow = _SLOW_STRETCH if worth else min(2 * slow, _LAST_SLOW_STRETCH)
            end = min(row + slow, num_rows)
            seen = zip(steps[row:end].tolist(), values[row:end].tolist(), strict=True)
            for place, (step, value) in enumerate(seen, row):
                alarm = self.see(column, step, value)
                if alarm is not None:
                    yield place, alarm
            row = seen_up_to = end

    def thresholds(self, state: list[C]) -> list[Threshold]:
        return [self.threshold(column) for column in state]


def state_to_tree(state: Any) -> Any:
    """Turn a detector's state into nested dicts and lists of plain values and arrays.

    Handles dataclasses, objects with `to_tree`, lists, tuples, dicts, arrays and
    scalars; types are restored from the shape of a fresh state, so none is stored.
    The tree is independent of the state.
    """
    if hasattr(state, "to_tree"):
        return state.to_tree()
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        names = [field.name for field in dataclasses.fields(state)]
        return {name: state_to_tree(getattr(state, name)) for name in names}
    if isinstance(state, dict):
        return {key: state_to_tree(value) for key, value in state.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(state, list) and state and isinstance(state[0], float):
        return list(state)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(state, list | tuple):
        return [state_to_tree(value) for value in state]  # pyright: ignore[reportUnknownVariableType]
    return state.copy() if isinstance(state, np.ndarray) else state  # pyright: ignore[reportUnknownVariableType]


def state_from_tree(fresh: Any, tree: Any) -> Any:
    """Rebuild a state from `state_to_tree`, given a fresh state of the same rule and series."""
    kind: Any = cast(Any, type(fresh))
    if hasattr(kind, "from_tree"):
        return kind.from_tree(tree)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        parts = {name: state_from_tree(getattr(fresh, name), tree[name]) for name in names}
        return dataclasses.replace(fresh, **parts)
    if kind is list and fresh and not isinstance(fresh[0], float | int | str):
        return [state_from_tree(old, new) for old, new in zip(fresh, tree, strict=True)]
    if kind is tuple:
        return tuple(state_from_tree(old, new) for old, new in zip(fresh, tree, strict=True))
    if kind is dict:
        return {
            key: state_from_tree(fresh[key], new) if key in fresh else copy.deepcopy(new)
            for key, new in tree.items()
        }
    if kind is np.ndarray:
        return np.array(tree, dtype=fresh.dtype).reshape(fresh.shape)
    return copy.deepcopy(tree)
