"""What the Guard can do in each loop: declared beside each adapter, read without importing it.

A module of `foreshock.integrations` has a literal `CAPABILITIES` with `title`, `packages` (of
the registry, in whose loop it works) and `extra` (of ours); the abilities that it has (`yes`) and
those of which no test has shown it (`untested`), as words; the `limited` and the missing ones
(`no`), each with the reason; and `refuses`: what is refused when the Guard is built, and why. It
is read from the source, so that nothing needs to be installed.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final, cast

from foreshock.core.errors import CatalogError

ABILITIES: Final = MappingProxyType(
    {
        "watch": "record every signal, and raise alarms",
        "samples": "see the loss of each sample",
        "skip": "leave out a bad update, exactly",
        "rollback": "go back to a healthy state and go on",
        "quarantine": "set data aside, row by row",
        "resume": "go on after a kill, exactly",
        "stop": "write a last state on SIGTERM and SIGUSR1",
        "clip": "clip gradients, and tighten it",
        "lr": "lower the learning rate for a while",
        "accumulate": "several micro-steps in a step",
        "fp16": "a gradient scaler",
        "processes": "replicas on several processes",
        "shards": "sharded parameters (FSDP2, HSDP)",
        "own_loader": "a loader that cannot go back",
    }
)
"""What is said of every loop, in the order in which it is shown."""
STATES: Final = ("yes", "limited", "no", "untested")


@dataclass(frozen=True, kw_only=True)
class CapabilityTable:
    """What the Guard can do in one kind of loop.

    Attributes:
        name: of the integration's module; "plain" for a plain loop.
        title: of the framework.
        packages: name and installed version, or None, of what it needs.
        extra: what to install of Foreshock, as `pip install 'foreshock[extra]'`.
        can: state and reason of each ability.
        refuses: what is refused when the Guard is built, and why.
    """

    name: str
    title: str
    packages: Mapping[str, str | None]
    extra: str
    can: Mapping[str, tuple[str, str]]
    refuses: Mapping[str, str]

    @property
    def installed(self) -> bool:
        """Whether all that it needs is there."""
        return all(found is not None for found in self.packages.values())


PLAIN_LOOP: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "title": "a loop of your own",
        "packages": ["torch", "safetensors"],
        "extra": "torch",
        "yes": "watch samples skip rollback quarantine resume stop clip lr accumulate fp16 "
        "processes shards",
        "limited": {"own_loader": "one with state_dict goes back; with others steps are skipped"},
        "refuses": {
            "closures (LBFGS)": "they evaluate the loss several times within one update",
            "FSDP1": "it flattens parameters; use fully_shard",
            "pipeline stages": "ranks hold different modules",
        },
    }
)


def capability_tables() -> list[CapabilityTable]:
    """Those of a plain loop and of every integration that declares one, by name.

    Raises:
        CatalogError: a module's table is not as it should be.
    """
    found = [_table("plain", PLAIN_LOOP)]
    for path in sorted(files("foreshock.integrations").iterdir(), key=lambda one: one.name):
        if path.name.endswith(".py") and not path.name.startswith("_"):
            name = path.name.removesuffix(".py")
            declared = declared_in(path.read_text(encoding="utf-8"), name)
            if declared is not None:
                found.append(_table(name, declared))
    return found


def declared_in(source: str, name: str) -> Mapping[str, Any] | None:
    """The literal `CAPABILITIES` of a module's source; None where there is none.

    Raises:
        CatalogError: it is no literal.
    """
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(one, ast.Name) and one.id == "CAPABILITIES" for one in targets):
            try:
                return cast("Mapping[str, Any]", ast.literal_eval(cast("ast.Assign", node).value))
            except ValueError as error:
                raise CatalogError(
                    f"integrations/{name}.py: CAPABILITIES must be a literal, since it is read "
                    f"without importing the framework ({error})"
                ) from error
    return None


def _table(name: str, declared: Mapping[str, Any]) -> CapabilityTable:
    try:
        told = [
            (ability, (state, reason))
            for state in STATES
            for ability, reason in _reasons(declared.get(state, "")).items()
        ]
        said = dict(told)
        if len(told) != len(said) or set(said) != set(ABILITIES):
            odd = sorted({one for one, _ in told} ^ set(ABILITIES)) or ["what stands there twice"]
            raise ValueError(f"each ability is told of once; look at {', '.join(odd)}")
        return CapabilityTable(
            name=name,
            title=declared["title"],
            packages={package: _installed(package) for package in declared["packages"]},
            extra=declared["extra"],
            can={ability: said[ability] for ability in ABILITIES},
            refuses=dict(declared["refuses"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CatalogError(f"integrations/{name}.py: CAPABILITIES: {error}") from error


def _reasons(said: "str | Mapping[str, str]") -> Mapping[str, str]:
    return dict.fromkeys(said.split(), "") if isinstance(said, str) else said


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def as_markdown(tables: Sequence[CapabilityTable]) -> str:
    """The tables as one, for the documentation; reasons stand below it."""
    rows = [
        ["", *(table.name for table in tables)],
        ["---"] * (1 + len(tables)),
        *(
            [what, *(table.can[ability][0] for table in tables)]
            for ability, what in ABILITIES.items()
        ),
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes = [
        f"- `{table.name}`, {ability}: {table.can[ability][1]}."
        for table in tables
        for ability in ABILITIES
        if table.can[ability][1]
    ]
    return "\n".join([*lines, "", *notes])
