"""`foreshock demo`: a real training breaks twice, and is put right before your eyes."""

import json as json_format
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from foreshock.core.errors import ConfigError


def command(  # noqa: PLR0917 - the options of a command line
    run_dir: Annotated[
        Path | None, typer.Option(help="Where the guarded run is recorded; new or empty.")
    ] = None,
    fault_seed: Annotated[int, typer.Option(help="Draws place, kind and strength of faults.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the model and the data.")] = 0,
    faults: Annotated[bool, typer.Option(help="Let the faults strike.")] = True,
    guard: Annotated[bool, typer.Option(help="Train under the Guard.")] = True,
    data_rules: Annotated[
        bool, typer.Option("--data-rules", help="Check every sample at the door.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures only, as JSON.")] = False,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 leaves torch's choice.")] = 0,
) -> None:
    """Train a small GPT on real text; a bad crawl shard and a damaged optimizer strike.

    Exit code 0 if every incident was caught, undone and verified, 1 if not.
    """
    import torch  # noqa: PLC0415 - the command line starts without torch

    from foreshock.lab.demo_faults import DemoFaults  # noqa: PLC0415
    from foreshock.lab.demo_run import play, runs_of  # noqa: PLC0415
    from foreshock.lab.demo_view import DemoView, story  # noqa: PLC0415

    if fault_seed < 0 or seed < 0:
        raise ConfigError(f"seeds must be 0 or more, got --fault-seed {fault_seed} --seed {seed}")
    if threads:
        torch.set_num_threads(threads)
    if run_dir is None:
        run_dir = Path(tempfile.mkdtemp(prefix="foreshock-demo-")) / "run"
    drawn = DemoFaults.draw(fault_seed) if faults else None
    console = Console(stderr=as_json, quiet=as_json)
    with DemoView(console, runs_of(faults=drawn, guard=guard)) as view:
        result = play(
            run_dir,
            seed=seed,
            faults=drawn,
            guard=guard,
            rules=data_rules,
            progress=view.progress,
            listener=view.listen,
        )
    report = _report(run_dir) if guard else None
    figures = result.to_json()
    if as_json:
        figures |= {"run_dir": str(run_dir), "report": str(report) if report else None}
        print(json_format.dumps(figures, allow_nan=False))
    else:
        console.print(story(figures, report=str(report) if report else None))
    if guard and not result.passed:
        raise typer.Exit(1)


def _report(run_dir: Path) -> Path | None:
    """Write the report if its packages are there; the demo does not fail for want of them."""
    from foreshock.core.errors import MissingExtra  # noqa: PLC0415
    from foreshock.report.html import write_report  # noqa: PLC0415

    out = run_dir / "report.html"
    try:
        write_report(run_dir, out, {})
    except MissingExtra:
        return None
    return out
