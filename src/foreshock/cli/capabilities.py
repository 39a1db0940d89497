"""`foreshock capabilities`: what works in which loop, and what is refused and why."""

import json as json_format
import textwrap
from typing import Annotated

import typer

from foreshock.capability_tables import ABILITIES, CapabilityTable, capability_tables
from foreshock.core.errors import ConfigError

_WIDTH = 80
_INDENT = 11


def command(
    name: Annotated[str | None, typer.Argument(help="Of one loop; all by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")] = False,
) -> None:
    """List what works in each loop (plain, hf, lightning, …), and what does not and why.

    Nothing is imported or started; nothing needs to be installed.
    """
    tables = capability_tables()
    if name is not None:
        known = ", ".join(table.name for table in tables)
        tables = [table for table in tables if table.name == name]
        if not tables:
            raise ConfigError(f"there is no integration {name!r:.40}; there are {known}")
    if as_json:
        told = {"abilities": dict(ABILITIES), "loops": [_as_json(table) for table in tables]}
        typer.echo(json_format.dumps(told, ensure_ascii=False))
        return
    typer.echo("\n\n".join(_shown(table) for table in tables))


def _as_json(table: CapabilityTable) -> dict[str, object]:
    return {
        "name": table.name,
        "title": table.title,
        "installed": table.installed,
        "packages": dict(table.packages),
        "extra": table.extra,
        "can": {
            ability: {"state": state, "reason": reason}
            for ability, (state, reason) in table.can.items()
        },
        "refuses": dict(table.refuses),
    }


def _shown(table: CapabilityTable) -> str:
    there = [f"{package} {found}" for package, found in table.packages.items() if found]
    missing = [package for package, found in table.packages.items() if not found]
    if missing:
        there.append(f"without {', '.join(missing)}: pip install 'foreshock[{table.extra}]'")
    lines = [_line(table.name, f"{table.title} ({'; '.join(there)})", indent="")]
    for state, word in (("yes", "can"), ("untested", "untested")):
        which = [ability for ability, (said, _) in table.can.items() if said == state]
        if which:
            lines.append(_line(word, ", ".join(which)))
    for state, word in (("limited", "limited"), ("no", "cannot")):
        for ability, (said, reason) in table.can.items():
            if said == state:
                lines.append(_line(word, f"{ability}: {reason}"))
    lines += [_line("refuses", f"{what}: {why}") for what, why in table.refuses.items()]
    return "\n".join(lines)


def _line(word: str, text: str, *, indent: str = "  ") -> str:
    head = f"{indent}{word}".ljust(_INDENT)
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=head if head.endswith(" ") else f"{head} ",
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )
