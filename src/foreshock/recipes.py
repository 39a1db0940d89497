"""Ready-made combinations of components, and their configuration as TOML."""

import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foreshock.catalog import make, members
from foreshock.core.cause import Cause
from foreshock.core.detector import Detector
from foreshock.core.errors import CatalogError, ConfigError
from foreshock.core.nearest import did_you_mean
from foreshock.core.policy import Policy
from foreshock.core.retention import Retention
from foreshock.core.rule import Rule
from foreshock.core.settings import read_settings
from foreshock.core.signal import Level, Signal
from foreshock.core.sink import Sink
from foreshock.core.symptom import Look
from foreshock.monitor import Monitor
from foreshock.policy_tables import read_policy

_MAX_BYTES = 1 << 20
_TABLES = (
    "signals",
    "detectors",
    "causes",
    "rules",
    "level",
    "policy",
    "cadence",
    "sinks",
    "lag_steps",
    "advise",
)


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """How often snapshots are taken, and which are kept.

    Args:
        memory_steps: steps between snapshots in memory; 0 for none.
        memory_keep: how many of them are kept.
        disk_steps: steps between durable snapshots.
        disk_minutes: minutes of progress that may be at risk: a durable snapshot is due
            then too; 0 for any.
        disk_keep: how many of the newest are kept besides the run's start.
        anchor_steps: steps between older healthy ones that are kept, at first.
        anchor_factor: how many times as old as the next younger one an older one may be.
        budget_bytes: size that all durable ones may have; 0 for no limit. The start, the
            newest and the newest healthy one are kept even beyond it.
        asynchronous: whether they are written while the training goes on.
    """

    memory_steps: int = 10
    memory_keep: int = 6
    disk_steps: int = 100
    disk_minutes: float = 30.0
    disk_keep: int = 5
    anchor_steps: int = 500
    anchor_factor: float = 4.0
    budget_bytes: int = 0
    asynchronous: bool = True

    def __post_init__(self) -> None:
        least = {"disk_steps": 1, "disk_keep": 1, "anchor_factor": 1}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if not least.get(item.name, 0) <= value < math.inf:
                raise ConfigError(
                    f"Cadence.{item.name} is {value}; it must be at least "
                    f"{least.get(item.name, 0)}, and finite"
                )

    @property
    def retention(self) -> Retention:
        """Which durable snapshots are kept."""
        return Retention(
            newest=self.disk_keep,
            anchor_steps=self.anchor_steps,
            anchor_factor=self.anchor_factor,
            budget_bytes=self.budget_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a Guard watches with and decides by.

    Args:
        signals: what is measured.
        detectors: what raises alarms.
        causes: what an episode is explained by.
        symptoms: what looks for the symptoms that causes are told by; all by default.
        rules: online data rules; every sample passes them before it trains.
        policy: what is done.
        cadence: when snapshots are taken.
        lag_steps: steps between a measurement and its reading by the host. Fixed, so
            that ranks and replays agree; 1 keeps the device busy.
        advise: decide and journal as ever, and carry nothing out: no rollback, no skipped
            update, no refused sample. The run goes on as if nobody guarded it.
        sinks: whom decisions are told to.
    """

    signals: tuple[Signal, ...]
    detectors: tuple[Detector, ...]
    causes: tuple[Cause, ...]
    symptoms: tuple[Look, ...] = field(default_factory=lambda: _family("symptoms", {}))
    rules: tuple[Rule, ...] = ()
    policy: Policy = field(default_factory=Policy)
    cadence: Cadence = field(default_factory=Cadence)
    lag_steps: int = 1
    advise: bool = False
    sinks: tuple[Sink, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.lag_steps, int) or self.lag_steps < 0:
            raise ConfigError(f"Recipe.lag_steps is {self.lag_steps}; it must be 0 or more")
        if not self.causes:
            raise ConfigError("a Recipe needs at least one cause, to explain an incident with")
        if not isinstance(self.advise, bool):
            raise ConfigError(f"Recipe.advise is {self.advise!r:.80}; it must be true or false")

    def monitor(
        self,
        series: Sequence[str],
        update_series: frozenset[str],
        facts: Mapping[str, Any],
        intervals: Mapping[str, int] | None = None,
    ) -> Monitor:
        """The monitor that watches these series by this recipe; see `Monitor`."""
        return Monitor(
            series,
            update_series=update_series,
            detectors=self.detectors,
            causes=self.causes,
            looks=self.symptoms,
            quiet_steps=self.policy.quiet_steps,
            facts=facts,
            intervals=intervals,
        )


def standard(settings: dict[str, Any] | None = None) -> Recipe:
    """Every component that is found, each with its defaults or the settings given.

    Signals beyond the level, "standard" by default, are left out unless they have settings.

    Args:
        settings: tables by family and component, then `level`, `policy`, `cadence` and
            `advise`, as `load` reads them; sinks only if they are named; `{"rules": False}`
            turns a whole family off.

    Raises:
        ConfigError: a table or a setting does not exist.
    """
    tables = dict(settings or {})
    parts: dict[str, Any] = {}
    tables["signals"] = _at_level(tables.pop("level", Level.STANDARD), tables.get("signals", {}))
    for family in ("signals", "detectors", "causes", "symptoms", "rules"):
        parts[family] = _family(family, tables.pop(family, {}))
    parts["policy"] = read_policy(tables.pop("policy", {}))
    parts["cadence"] = _table("cadence", Cadence, tables.pop("cadence", {}))
    parts["sinks"] = _sinks(tables.pop("sinks", {}))
    for name in ("lag_steps", "advise"):
        if name in tables:
            parts[name] = tables.pop(name)
    if tables:
        name = next(iter(tables))
        raise ConfigError(
            f"unknown setting {name!r}{did_you_mean(name, _TABLES) or ';'} Known are "
            f"{', '.join(_TABLES)}"
        )
    return Recipe(**parts)


def watching(level: Level | str = Level.STANDARD) -> Recipe:
    """Observe only, as much as the level says: the policy never acts, no snapshot is kept."""
    return dataclasses.replace(
        standard({"rules": False, "level": level}),
        policy=Policy(watch_only=True),
        cadence=Cadence(memory_steps=0, memory_keep=0),
    )


def load(path: Path) -> Recipe:
    """Read a recipe from a TOML file.

        lag_steps = 1
        rules = false

        [policy]
        confirm_steps = 2

        [detectors.spike]
        z = 8.0

    Raises:
        ConfigError: the file cannot be read, or a setting does not exist.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ConfigError(f"{path} is larger than {_MAX_BYTES} bytes: no recipe is")
        tables = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # too deep, or a number of too many digits
        raise ConfigError(f"{path} is not TOML: {error}") from error
    try:
        return standard(tables)
    except (OverflowError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path} has a setting that cannot be used: {error!s:.200}") from error


def _at_level(level: Any, table: Any) -> Any:
    """The table of signals as the level has them, except for those that have settings."""
    try:
        wanted = Level(level)
    except ValueError as error:
        known = ", ".join(Level)
        raise ConfigError(f"level is {level!r:.80}; it must be one of {known}") from error
    if table is False or not isinstance(table, dict | bool):
        return table
    given: dict[str, Any] = table if isinstance(table, dict) else {}
    kinds = members("signals").items()
    beyond = dict.fromkeys((name for name, kind in kinds if not wanted.holds(kind.level)), False)
    fuller: dict[str, Any] = {}
    if wanted is Level.FULL:
        fuller = {name: dict(kind.at_full) for name, kind in kinds if kind.at_full}
    return {**beyond, **fuller, **given}


def _family(family: str, table: Any) -> tuple[Any, ...]:
    if table is False:
        return ()
    if table is True:
        table = {}
    if not isinstance(table, dict):
        raise ConfigError(f"{family} is {table!r}; it must be a table, true or false")
    known = members(family)
    for name in table:
        if name not in known:
            near = did_you_mean(name, known)
            tail = f"{near} It" if near else "; it"
            raise ConfigError(f"{family} has no {name!r}{tail} has {', '.join(known)}")
    built: list[Any] = []
    for name in known:
        settings = table.get(name, {})
        if settings is not False:
            built.append(_component(family, name, settings))
    return tuple(built)


def _sinks(table: Any) -> tuple[Any, ...]:
    """Only those that are asked for: a sink needs an address."""
    if not isinstance(table, dict):
        raise ConfigError("sinks must be a table of sinks, each with its settings")
    for name in table:
        if name not in members("sinks"):
            near = did_you_mean(name, members("sinks")) or "; it has " + ", ".join(members("sinks"))
            raise ConfigError(f"sinks has no {name!r:.80}{near}")
    given = [(name, settings) for name, settings in table.items() if settings is not False]
    return tuple(_component("sinks", name, settings) for name, settings in given)


def _component(family: str, name: str, settings: Any) -> Any:
    settings = {} if settings is True else settings
    try:
        checked = read_settings(f"{family}.{name}", members(family)[name], settings)
        return make(family, name, **checked)
    except CatalogError as error:
        raise ConfigError(str(error)) from error


def _table(name: str, kind: type[Any], table: Any) -> Any:
    return kind(**read_settings(name, kind, table))
