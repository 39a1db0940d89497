"""`foreshock samples`: which samples went into a step."""

import json as json_format
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_MAX_ROWS = 10_000
"""Rows of the table. Our choice: rich lays out as many in a few seconds."""


def command(
    run_dir: Annotated[Path, typer.Argument(help="The run directory.")],
    step: Annotated[int, typer.Option(help="Optimizer step.", min=1)],
    attempt: Annotated[
        int | None, typer.Option(help="One attempt only; a rolled-back step has several.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """Name the samples that a step trained on, by source and index."""
    from foreshock.durable import RealDisk  # noqa: PLC0415 - the command line starts quickly
    from foreshock.journal import Journal  # noqa: PLC0415
    from foreshock.provenance import samples_of  # noqa: PLC0415
    from foreshock.report.clean import clean_text  # noqa: PLC0415

    found = samples_of(Journal.read(RealDisk(), run_dir), step, attempt)
    if as_json:
        print(json_format.dumps([asdict(one) for one in found]))
        return
    console = Console()
    if not found:
        console.print(f"no samples are recorded for step {step}")
        return
    table = Table("attempt", "position", "stage", "source", "index")
    for one in found[:_MAX_ROWS]:
        row = (one.attempt, one.position, one.stage, one.source, one.index)
        table.add_row(*(Text(clean_text(str(cell))) for cell in row))
    console.print(table)
    if len(found) > _MAX_ROWS:
        console.print(f"and {len(found) - _MAX_ROWS:,} more: see them all with --json")
    shares = Counter(one.source for one in found)
    told = ", ".join(f"{source}: {count}" for source, count in shares.most_common())
    console.print(clean_text(told), markup=False)
