"""Finds the members of a family by looking into its folder; nobody keeps a list.

A component is a class in a file of its family's folder. Other people's packages join
through the entry point group `foreshock.components`: each entry names a class, and the
class's base says which family it belongs to.
"""

import dataclasses
import inspect
import pkgutil
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from foreshock.core.errors import CatalogError

GROUP = "foreshock.components"

FAMILIES = MappingProxyType(
    {
        "actions": "foreshock.core.action:Action",
        "causes": "foreshock.core.cause:Cause",
        "detectors": "foreshock.core.detector:Detector",
        "experiments": "foreshock.core.experiment:Experiment",
        "faults": "foreshock.core.fault:Fault",
        "probes": "foreshock.core.probe:Probe",
        "readers": "foreshock.core.reader:Reader",
        "rules": "foreshock.core.rule:Rule",
        "signals": "foreshock.core.signal:Signal",
        "sinks": "foreshock.core.sink:Sink",
        "symptoms": "foreshock.core.symptom:Look",
    }
)
"""Family folder to the contract its members keep, as `module:class`."""


@cache
def members(family: str) -> "MappingProxyType[str, type[Any]]":
    """Return the components of a family by name, built-in and plugged in.

    Raises:
        CatalogError: there is no such family, a component breaks its contract, two share
            a name, or a plug-in cannot be loaded.
    """
    if family not in FAMILIES:
        raise CatalogError(f"there is no family {family!r}; there are {', '.join(FAMILIES)}")
    contract = _resolve(FAMILIES[family])
    found: dict[str, type[Any]] = {}
    package = import_module(f"foreshock.{family}")
    for info in pkgutil.iter_modules(package.__path__):
        module = import_module(f"foreshock.{family}.{info.name}")
        for member in _classes(module, contract):
            name = getattr(member, "name", None)
            if name != info.name:
                raise CatalogError(
                    f"{family}/{info.name}.py: {member.__name__}.name is {name!r}; the "
                    f"file bears the component's name, so it must be {info.name!r}"
                )
            _add(found, family, member)
    for entry in entry_points(group=GROUP):
        member = _load(entry)
        if issubclass(member, contract):
            _add(found, family, member)
    return MappingProxyType(dict(sorted(found.items())))


def make(family: str, name: str, **settings: Any) -> Any:
    """Build a component by family and name.

    Raises:
        CatalogError: there is none of that name, it has no such setting, or lacks one.
    """
    known = members(family)
    if name not in known:
        raise CatalogError(f"{family} has no {name!r}; it has {', '.join(known)}")
    allowed = [item.name for item in dataclasses.fields(known[name]) if item.init]
    for setting in settings:
        if setting not in allowed:
            raise CatalogError(
                f"{family}/{name} has no setting {setting!r}; it has {', '.join(allowed) or 'none'}"
            )
    try:
        return known[name](**settings)
    except TypeError as error:
        raise CatalogError(f"{family}/{name} with {settings}: {error}") from error


def _classes(module: Any, contract: type[Any]) -> list[type[Any]]:
    return [
        member
        for member in vars(module).values()
        if isinstance(member, type)
        and issubclass(member, contract)
        and member.__module__ == module.__name__
        and not inspect.isabstract(member)
    ]


def _add(found: dict[str, type[Any]], family: str, member: type[Any]) -> None:
    name = getattr(member, "name", None)
    if not isinstance(name, str) or not name:
        raise CatalogError(f"{family}: {member.__module__}.{member.__name__} has no name")
    if name in found:
        other = found[name]
        raise CatalogError(
            f"{family} has two components called {name!r}: {other.__module__}.{other.__name__} "
            f"and {member.__module__}.{member.__name__}"
        )
    found[name] = member


def _load(entry: Any) -> type[Any]:
    plug_in = f"plug-in {entry.value!r} ({entry.name})"
    try:
        member = entry.load()
    except Exception as error:
        raise CatalogError(
            f"{plug_in} cannot be loaded: {error!r}; mend or uninstall its package"
        ) from error
    contracts = tuple(_resolve(reference) for reference in FAMILIES.values())
    if not isinstance(member, type) or not issubclass(member, contracts):
        raise CatalogError(
            f"{plug_in} is no component: it must be a class derived from one of "
            f"{', '.join(contract.__name__ for contract in contracts)}"
        )
    if inspect.isabstract(member) or not dataclasses.is_dataclass(member):
        raise CatalogError(
            f"{plug_in} must be a frozen dataclass that implements every method of its contract"
        )
    return member


def _resolve(reference: str) -> type[Any]:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)
