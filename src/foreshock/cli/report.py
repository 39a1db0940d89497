"""`foreshock report`: what happened in a run, for a colleague, a terminal or a tool."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from foreshock.durable import RealDisk
from foreshock.journal import Journal


def command(
    run_dir: Annotated[Path, typer.Argument(help="The run directory; it is only read.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; RUN_DIR/report.html by default.")
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="Another run directory whose curves are drawn too; repeatable."),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print it here instead.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead.")] = False,
) -> None:
    """Tell what happened in a run: one self-contained HTML file to send to a colleague."""
    if text or json:
        from foreshock.report.summary import summarise  # noqa: PLC0415
        from foreshock.report.text import print_summary  # noqa: PLC0415

        summary = summarise(Journal.read(RealDisk(), run_dir))
        if json:
            typer.echo(json_format.dumps(summary.to_json(), indent=2, allow_nan=False))
        else:
            print_summary(summary, Console(soft_wrap=False))
        return
    from foreshock.report.html import write_report  # noqa: PLC0415

    target = out if out is not None else run_dir / "report.html"
    write_report(run_dir, target, _named(compare or []))
    typer.echo(f"{target}")


def _named(paths: list[Path]) -> dict[str, Path]:
    """Each path by its last part, or by all of it where two end alike."""
    names = [path.resolve().name for path in paths]
    return {
        name if names.count(name) == 1 else str(path): path
        for name, path in zip(names, paths, strict=True)
    }
