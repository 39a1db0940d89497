"""`foreshock minimize`: of what an incident set aside, give back what is not needed."""

import json as json_format
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from foreshock.cli.run import overrides_of
from foreshock.report.clean import clean_text

if TYPE_CHECKING:
    from foreshock.core.minimal import Minimal

_SHOWN = 12


def command(  # noqa: PLR0917 - the options of a command line
    run_dir: Annotated[Path, typer.Argument(help="The run directory.")],
    program: Annotated[str, typer.Option(help="PATH.py:function that returns the run's Program.")],
    max_steps: Annotated[
        int, typer.Option(help="Optimizer steps that the run was started with.", min=1)
    ] = 1000,
    incident: Annotated[
        int | None, typer.Option(help="Number of the incident; the last one by default.", min=1)
    ] = None,
    budget: Annotated[int, typer.Option(help="Replays that may be made.", min=3)] = 64,
    seed: Annotated[int, typer.Option(help="The run's seed.")] = 0,
    device: Annotated[str, typer.Option(help="Where to replay.")] = "cpu",
    config: Annotated[Path | None, typer.Option(help="The run's recipe as TOML.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE for Settings.overrides.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Wall time after which no more replays are begun.", min=0.0),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say it; release nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    behind: Annotated[
        bool,
        typer.Option(
            "--behind-run",
            hidden=True,
            help="Started by a run: of low priority, ends with it, leaves the finding for it.",
        ),
    ] = False,
) -> None:
    """Replay an incident to find the samples that cause it, and give the others back.

    From the last clean snapshot the set-aside window is trained again with some of its
    samples only, over and over. What together does not bring the incident back is given back:
    what lies ahead trains where it stands, what was skipped comes back beside other samples
    and is watched. Settings must be those of the run.

    Exit code 0 if the incident came again in the replay, 1 if it did not, 2 for mistakes.
    """
    until = math.inf if minutes is None else time.monotonic() + 60 * minutes
    if behind:
        from foreshock.background import behind_run  # noqa: PLC0415

        behind_run()
    from foreshock import recipes  # noqa: PLC0415 - the command line starts without torch
    from foreshock.core.program import Settings  # noqa: PLC0415
    from foreshock.driver import build, load_program  # noqa: PLC0415
    from foreshock.giving_back import give_back, leave  # noqa: PLC0415
    from foreshock.minimal import minimize  # noqa: PLC0415

    settings = Settings(
        seed=seed, device=device, max_steps=max_steps, overrides=overrides_of(override or [])
    )
    recipe = recipes.load(config) if config is not None else recipes.standard()
    console = Console(stderr=True, quiet=as_json)
    found = minimize(
        run_dir,
        build(load_program(program), settings),
        recipe,
        incident=incident,
        budget=budget,
        is_spent=lambda: time.monotonic() >= until,
        tell=lambda line: console.print(clean_text(line), markup=False, highlight=False),
    )
    taken = "not recorded"
    if behind:
        leave(run_dir, found)
        taken = "left for the run"
    elif not dry_run:
        taken = "journalled" if give_back(run_dir, found) else "left for the run"
    if as_json:
        print(json_format.dumps({**found.to_json(), "taken": taken}, allow_nan=False))
    else:
        _show(found, taken)
    if not found.reproduced:
        raise typer.Exit(1)


def _show(found: "Minimal", taken: str) -> None:
    console = Console()
    cost = found.tokens
    unit = "samples" if cost.per_sample is None else "tokens"
    table = Table(show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    rows = {
        f"incident {found.incident}": found.verdict,
        "needed": _named(found.needed),
        "undecided": _named(found.undecided),
        "given back": f"{found.num_given_back:,} samples ({taken})",
        "replays": f"{found.num_replays} of {found.budget}, {found.steps_replayed:,} steps in all",
        "from": f"snapshot {found.snapshot}{_exactness(found.exact)}",
        f"{unit} lost": f"{cost.recomputed:,} trained again, {cost.set_aside_after:,} set aside "
        f"(before: {cost.set_aside_before:,})",
        "by PaLM's practice": f"{cost.palm[0]:,} to {cost.palm[1]:,}{_times(cost.times_fewer)}",
    }
    for name, text in rows.items():
        table.add_row(name, clean_text(text))
    console.print(table)


def _named(keys: "tuple[tuple[str, int], ...]") -> str:
    if not keys:
        return "none"
    names = ", ".join(f"{source}:{index}" for source, index in keys[:_SHOWN])
    more = f", and {len(keys) - _SHOWN:,} more" if len(keys) > _SHOWN else ""
    return f"{len(keys):,} samples: {names}{more}"


def _exactness(exact: bool | None) -> str:
    if exact is None:
        return "; its steps could not be compared with those of the run"
    if exact:
        return "; losses up to the onset as in the run, bit by bit"
    return "; losses up to the onset are NOT those of the run: check its settings"


def _times(fewer: tuple[float, float] | None) -> str:
    return "" if fewer is None else f": {fewer[0]:.1f} to {fewer[1]:.1f} times as many"
