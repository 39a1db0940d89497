"""Checks a table of settings, as TOML gives it, against the fields of a dataclass."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, cast

from foreshock.core.errors import ConfigError
from foreshock.core.nearest import did_you_mean

_PLAIN: Final[dict[Any, tuple[type, ...]]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    int | None: (int,),
    float | None: (int, float),
}
_MAX_WHOLE: Final = 1 << 53
_KEPT_BACK: Final = "kept back"


def secret(**options: Any) -> Any:
    """A field of a component whose value is told to nobody: not by its repr, nor in errors."""
    return dataclasses.field(repr=False, metadata={_KEPT_BACK: True}, **options)


def read_settings(path: str, kind: type[Any], table: object) -> dict[str, Any]:
    """The settings of a table, lists as tuples.

    Args:
        path: where the table stands in the file, for errors ("policy.rungs.rollback").
        kind: the dataclass that is configured.
        table: what was read.

    Raises:
        ConfigError: it is no table, or a setting is unknown, of the wrong type or too large.
    """
    if not isinstance(table, dict):
        raise ConfigError(f"{path} is {table!r:.80}; it must be a table of settings")
    settings = cast("dict[str, Any]", table)
    fields = {item.name: item for item in dataclasses.fields(kind)}
    for name, value in settings.items():
        if name not in fields:
            raise unknown(path, name, fields)
        if fields[name].metadata.get(_KEPT_BACK):
            if not _fits(fields[name].type, value):
                needed = _needed(fields[name].type)
                raise ConfigError(f"{path}: {name} is not {needed} (its value is kept back)")
        elif not _fits(fields[name].type, value):
            needed = _needed(fields[name].type)
            raise ConfigError(f"{path}: {name} is {value!r:.80}; it must be {needed}")
        if isinstance(value, int) and abs(value) > _MAX_WHOLE:
            raise ConfigError(f"{path}: {name} is beyond 2**53; no setting is that large")
    return {name: as_value(value) for name, value in settings.items()}


def unknown(path: str, name: object, known: Any) -> ConfigError:
    """The error for a setting that does not exist; the nearest that does comes first."""
    there = ", ".join(known) or "none"
    near = did_you_mean(name, known)
    tail = f"{near} It has {there}" if near else f"; it has {there}"
    return ConfigError(f"{path} has no setting {name!r:.80}{tail}")


def as_value(value: Any) -> Any:
    """A value as a dataclass keeps it: lists as tuples."""
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _fits(declared: Any, value: object) -> bool:
    if declared == tuple[str, ...] or declared == Sequence[str]:
        listed = isinstance(value, list | tuple)
        return listed and all(isinstance(one, str) for one in cast("Sequence[object]", value))
    wanted = _PLAIN.get(declared)
    if wanted is None:
        return True
    return isinstance(value, wanted) and isinstance(value, bool) == (declared is bool)


def _needed(declared: Any) -> str:
    if declared == tuple[str, ...] or declared == Sequence[str]:
        return "a list of names"
    wanted = _PLAIN[declared]
    return f"of type {wanted[-1].__name__}"
