"""`foreshock signals`: what would be recorded of a Program, how exactly, and at what cost."""

import dataclasses
import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from foreshock.cli.run import overrides_of

if TYPE_CHECKING:
    from foreshock.costing import Costs


def command(  # noqa: PLR0917 - the options of a command line
    program: Annotated[str, typer.Argument(help="PATH.py:function that returns a Program.")],
    level: Annotated[str, typer.Option(help="minimal, standard or full.")] = "standard",
    steps: Annotated[int, typer.Option(help="Steps to measure over.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Seeds every generator.")] = 0,
    device: Annotated[str, typer.Option(help="Where to train.")] = "cpu",
    config: Annotated[Path | None, typer.Option(help="A recipe as TOML, for --level.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE for Settings.overrides.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """List the signals of a Program, their exactness, and their measured cost.

    Trains a few steps; nothing is kept. Exit code 2 if the program cannot be run.
    """
    from foreshock import recipes  # noqa: PLC0415 - the command line starts without torch
    from foreshock.core.program import Settings  # noqa: PLC0415
    from foreshock.costing import WARM_UP_STEPS, measure_costs  # noqa: PLC0415
    from foreshock.driver import build, load_program  # noqa: PLC0415

    recipe = recipes.load(config) if config is not None else recipes.watching(level)
    settings = Settings(
        seed=seed,
        device=device,
        max_steps=WARM_UP_STEPS + steps,
        overrides=overrides_of(override or []),
    )
    built = build(load_program(program), settings)
    console = Console(stderr=True, quiet=as_json)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("measuring", total=WARM_UP_STEPS + steps)
        costs = measure_costs(
            built, recipe, steps, progress=lambda step: bar.update(task, completed=step)
        )
    if as_json:
        typer.echo(json_format.dumps(_as_json(costs), allow_nan=False))
    else:
        _show(costs, Console())


def _as_json(costs: "Costs") -> "dict[str, object]":
    return {
        "step_secs": costs.step_secs,
        "total_pct": costs.total_pct,
        "bytes_per_step": costs.bytes_per_step,
        "fused": costs.fused,
        "signals": [dataclasses.asdict(one) for one in costs.signals],
        "others": [
            {"name": one.name, "what": one.passes, "cost_pct": one.cost_pct} for one in costs.others
        ],
    }


def _show(costs: "Costs", console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("signal", "series", "exactness", "level", "every"):
        table.add_column(column, justify="right" if column in ("series", "every") else "left")
    table.add_column("% of a step", justify="right")
    for one in costs.signals:
        every = "step" if one.interval_steps == 1 else f"{one.interval_steps} steps"
        table.add_row(
            one.name,
            str(one.num_series),
            str(one.exactness),
            one.level,
            every,
            f"{one.cost_pct:.3f}",
        )
    for one in costs.others:
        table.add_row(one.name, "", "", "", "", f"{one.cost_pct:.3f}")
    console.print(table)
    console.print(
        f"\nAll but the norms, which clipping takes anyway: {costs.total_pct:.2f} % of a step of "
        f"{costs.step_secs * 1000:.0f} ms; one copy of {costs.bytes_per_step:,} bytes."
    )
    console.print(f"Fused passes: {costs.fused}.", markup=False)
    for one in costs.signals:
        for note in one.notes:
            console.print(f"{one.name}: {note}", style="yellow", markup=False)
