"""`foreshock verify`: is the model whole? Probes of one state against another."""

import json as json_format
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from foreshock.cli.run import overrides_of
from foreshock.core.comparison import Comparison, compare
from foreshock.core.errors import ConfigError
from foreshock.core.reading import json_number
from foreshock.report.clean import clean_text

if TYPE_CHECKING:
    from foreshock.core.probe import Probe


def command(  # noqa: PLR0917 - the options of a command line
    before: Annotated[
        str, typer.Argument(metavar="A", help="The healthy state: RUN, RUN@STEP or a weights file.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The state in question.")],
    program: Annotated[
        str, typer.Option(help="PATH.py:function that returns the Program: its model and probes.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Seeds every generator.")] = 0,
    device: Annotated[str, typer.Option(help="Where to measure.")] = "cpu",
    override: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE for Settings.overrides.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure capabilities of two states of one model and say which fell beyond noise.

    Weights are safetensors, in a run's snapshots or a file; only the program is run. The
    noise is that of the items, and what the healthy snapshots before A moved of themselves.

    Exit code 0 if B is whole, 1 if a capability is worse, 2 if they cannot be compared.
    """
    from foreshock.core.program import Settings  # noqa: PLC0415 - starts without torch
    from foreshock.driver import build, load_program, probes_of  # noqa: PLC0415
    from foreshock.verification import measure, shares_exact  # noqa: PLC0415
    from foreshock.weights import find_weights, growth_between, neighbours_of  # noqa: PLC0415

    old, new = find_weights(before), find_weights(after)
    settings = Settings(seed=seed, device=device, overrides=overrides_of(override or []))
    built = build(load_program(_known(program)), settings)
    probes = probes_of(built)
    if not probes:
        raise ConfigError(
            f"{program} has neither held_out data nor probes: nothing can be measured"
        )
    near = neighbours_of(old)
    measured: list[dict[str, list[float]]] = []
    shares: list[Mapping[str, float | None]] = []
    for one in (*near, old, new):
        one.load_into(built.model)
        measured.append(measure(built.model, probes))
        shares.append(shares_exact(built.model, probes) if one in (old, new) else {})
    growth = growth_between(old, new, near)
    compared = compare(measured[-2], measured[-1], measured[:-2], growth=growth)
    worse = [one.probe for one in compared if not one.passed]
    if as_json:
        typer.echo(
            json_format.dumps(
                {
                    "before": old.label,
                    "after": new.label,
                    "whole": not worse,
                    "worse": worse,
                    "num_neighbours": len(near),
                    "growth": json_number(growth),
                    "capabilities": [
                        {**one.to_json(), "exact_share": [s[one.probe] for s in shares[-2:]]}
                        for one in compared
                    ],
                },
                allow_nan=False,
            )
        )
    else:
        console = Console()
        console.print(f"A {clean_text(old.label)}\nB {clean_text(new.label)}\n", markup=False)
        _show(compared, console)
        _show_exact(shares[-2], shares[-1], console)
        console.print(_sentence(worse, len(near), probes), markup=False)
    raise typer.Exit(1 if worse else 0)


def _known(program: str) -> str:
    if program:
        return program
    raise ConfigError(
        "weights alone cannot be run: give --program PATH.py:function, whose model they fit"
    )


def _show(compared: Sequence[Comparison], console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("capability", overflow="fold", ratio=1)
    for column in ("A", "B", "change", "99.9 % interval", "noise"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for one in compared:
        table.add_row(
            clean_text(one.probe),
            _figure(one.before, ""),
            _figure(one.after, ""),
            _figure(one.difference),
            f"{_figure(one.low)} {_figure(one.high)}",
            _figure(one.movement, ""),
            "whole" if one.passed else "WORSE",
        )
    console.print(table)


def _figure(value: float, sign: str = "+") -> str:
    """At most seven characters."""
    if not math.isfinite(value):
        return str(value)
    digits = "e" if abs(value) >= 1000 else "f"
    return f"{value:{sign}.{1 if digits == 'e' else 3}{digits}}"


def _show_exact(
    before: Mapping[str, float | None], after: Mapping[str, float | None], console: Console
) -> None:
    told = [
        f"{clean_text(name)} {share:.0%} to {after[name]:.0%}"
        for name, share in before.items()
        if share is not None and after[name] is not None
    ]
    if told:
        console.print(f"\nWholly right: {', '.join(told)}.", markup=False)


def _sentence(worse: Sequence[str], num_near: int, probes: "Sequence[Probe]") -> str:
    from foreshock.verification import data_to_strengthen  # noqa: PLC0415

    noise = (
        f"Noise is what {num_near} healthy snapshot(s) before A moved of themselves."
        if num_near
        else "No healthy snapshot before A is at hand: how far training moves of itself is not "
        "known, and B may be called worse for that alone."
    )
    found = f"B is whole in {len(probes)} capabilities."
    if worse:
        teach = clean_text(data_to_strengthen(worse))
        found = (
            f"B is worse than A in {clean_text(', '.join(worse))}. Go back to a state before it "
            f"fell, or strengthen: {teach}."
        )
    return f"\n{found}\n{noise}"
