"""Ready-made combinations of components, and their configuration as TOML."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foreshock.catalog import make, members
from foreshock.core.cause import Cause
from foreshock.core.detector import Detector
from foreshock.core.errors import CatalogError, ConfigError
from foreshock.core.policy import Policy
from foreshock.core.rule import Rule
from foreshock.core.signal import Level, Signal
from foreshock.monitor import Monitor

_MAX_BYTES = 1 << 20
_MAX_WHOLE = 1 << 53
_PLAIN: dict[Any, Any] = {bool: bool, int: int, float: int | float, str: str}


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """How often snapshots are taken, and how many are kept.

    Args:
        memory_steps: steps between snapshots in memory; 0 for none.
        memory_keep: how many of them are kept.
        disk_steps: steps between durable snapshots.
        disk_keep: how many are kept besides the run's start.
    """

    memory_steps: int = 10
    memory_keep: int = 6
    disk_steps: int = 100
    disk_keep: int = 5

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            least = 0 if item.name.startswith("memory") else 1
            if value < least:
                raise ConfigError(f"Cadence.{item.name} is {value}; it must be at least {least}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a Guard watches with and decides by.

    Args:
        signals: what is measured.
        detectors: what raises alarms.
        causes: what an episode is explained by.
        rules: online data rules; every sample passes them before it trains.
        policy: what is done.
        cadence: when snapshots are taken.
        lag_steps: steps between a measurement and its reading by the host. Fixed, so
            that ranks and replays agree; 1 keeps the device busy.
    """

    signals: tuple[Signal, ...]
    detectors: tuple[Detector, ...]
    causes: tuple[Cause, ...]
    rules: tuple[Rule, ...] = ()
    policy: Policy = field(default_factory=Policy)
    cadence: Cadence = field(default_factory=Cadence)
    lag_steps: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.lag_steps, int) or self.lag_steps < 0:
            raise ConfigError(f"Recipe.lag_steps is {self.lag_steps}; it must be 0 or more")
        if not self.causes:
            raise ConfigError("a Recipe needs at least one cause, to explain an incident with")

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
            quiet_steps=self.policy.quiet_steps,
            facts=facts,
            intervals=intervals,
        )


def standard(settings: dict[str, Any] | None = None) -> Recipe:
    """Every component that is found, each with its defaults or the settings given.

    Signals beyond the level, "standard" by default, are left out unless they have settings.

    Args:
        settings: tables by family and component, then `level`, `policy` and `cadence`, as
            `load` reads them; `{"rules": False}` turns a whole family off.

    Raises:
        ConfigError: a table or a setting does not exist.
    """
    tables = dict(settings or {})
    parts: dict[str, Any] = {}
    tables["signals"] = _at_level(tables.pop("level", Level.STANDARD), tables.get("signals", {}))
    for family in ("signals", "detectors", "causes", "rules"):
        parts[family] = _family(family, tables.pop(family, {}))
    for name, kind in (("policy", Policy), ("cadence", Cadence)):
        parts[name] = _table(name, kind, tables.pop(name, {}))
    if "lag_steps" in tables:
        parts["lag_steps"] = tables.pop("lag_steps")
    if tables:
        raise ConfigError(
            f"unknown setting {next(iter(tables))!r}; known are signals, detectors, causes, "
            "rules, level, policy, cadence and lag_steps"
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
            raise ConfigError(f"{family} has no {name!r}; it has {', '.join(known)}")
    built: list[Any] = []
    for name in known:
        settings = table.get(name, {})
        if settings is False:
            continue
        if settings is True:
            settings = {}
        try:
            place = f"{family}/{name}"
            settings = _settings(place, members(family)[name], settings)
            built.append(make(family, name, **settings))
        except CatalogError as error:
            raise ConfigError(str(error)) from error
    return tuple(built)


def _table(name: str, kind: type[Any], table: Any) -> Any:
    if not isinstance(table, dict):
        raise ConfigError(f"{name} is {table!r}; it must be a table")
    return kind(**_settings(name, kind, table))


def _settings(place: str, kind: type[Any], table: Any) -> dict[str, Any]:
    """The settings of a table, lists as tuples; refused if unknown or of the wrong type."""
    if not isinstance(table, dict):
        raise ConfigError(f"{place} is {table!r}; it must be a table of settings, true or false")
    fields = {item.name: item for item in dataclasses.fields(kind)}
    for name, value in table.items():
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise ConfigError(f"{place} has no setting {name!r}; it has {known}")
        wanted = _PLAIN.get(fields[name].type)
        if wanted and (
            not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool)
        ):
            needed = getattr(fields[name].type, "__name__", "")
            raise ConfigError(f"{place}: {name} is {value!r}; it must be of type {needed}")
        if fields[name].type == tuple[str, ...] and not (
            isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        ):
            raise ConfigError(f"{place}: {name} is {value!r:.80}; it must be a list of names")
        if isinstance(value, int) and abs(value) > _MAX_WHOLE:
            raise ConfigError(f"{place}: {name} is beyond 2**53; no setting is that large")
    return {name: tuple(v) if isinstance(v, list) else v for name, v in table.items()}
