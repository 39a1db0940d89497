"""`foreshock diagnose`: what happened in a training, from its log, whatever wrote it."""

import contextlib
import json as json_format
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from foreshock.core.errors import ConfigError, ForeshockError

if TYPE_CHECKING:
    from foreshock.inspection.finding import Inspection
    from foreshock.report.compare_result import Comparison

SCHEMA: Final = "foreshock.diagnose/1"

_LARGE_BYTES: Final = 8 << 20
"""From here on a progress bar is shown. Our choice: less is read within about a second."""


def command(  # noqa: PLR0917 - the options of a command line
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="Files, directories, or patterns such as 'runs/*/train.log'."),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        str | None, typer.Option(help="The format, if it is not recognised; see --formats.")
    ] = None,
    map: Annotated[  # noqa: A002 - the option's name
        list[str] | None,
        typer.Option(help="SIGNAL=LABEL: which column a signal is, as in loss=train/lm_loss."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON instead.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the report with interactive curves there, too.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Put the runs side by side: seeds, rates.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Everything of every log, in full.")
    ] = False,
    all_outliers: Annotated[
        bool, typer.Option("--all-outliers", help="List the one-step outliers, too.")
    ] = False,
    formats: Annotated[bool, typer.Option("--formats", help="List the formats and leave.")] = False,
) -> None:
    """Read training logs of any trainer: where it spiked, what moved first, what to do.

    Exit code 0 if all is well, 1 if there is trouble in any log, 2 if any could not be read.
    """
    if formats:
        _print_formats()
        return
    if not paths:
        raise ConfigError("no log was named: foreshock diagnose PATH... (--help tells more)")
    labels = _labels(map or [])
    if html is not None:
        from foreshock.report.page import require_packages  # noqa: PLC0415

        require_packages("the text or --json")
    found, errors = _find(paths)
    inspections: list[Inspection] = []
    for path in found:
        try:
            inspections.append(_inspect(path, format, labels))
        except (ForeshockError, OSError) as error:
            errors.append((str(path), _sentence(error)))
    comparison = None
    if compare and inspections:
        from foreshock.report.compare import compare as put_side_by_side  # noqa: PLC0415

        comparison = put_side_by_side(inspections)
    if json:
        print(json_format.dumps(to_json(inspections, errors, comparison), allow_nan=False))
    else:
        _print(inspections, comparison, verbose=verbose, all_outliers=all_outliers)
    _print_errors(errors)
    if html is not None and inspections:
        from foreshock.report.diagnosis_html import write_diagnosis  # noqa: PLC0415

        write_diagnosis(inspections, html, comparison, errors)
        if not json:
            typer.echo(f"\n{html}")
    if errors:
        raise typer.Exit(2)
    if any(one.exit_code for one in inspections):
        raise typer.Exit(1)


def to_json(
    inspections: "Sequence[Inspection]",
    errors: Sequence[tuple[str, str]],
    comparison: "Comparison | None",
) -> dict[str, Any]:
    """What `--json` prints; docs/diagnose.md describes it."""
    from foreshock.report.clean import strict  # noqa: PLC0415

    logs = [one.to_json() for one in inspections]
    only = {key: value for key, value in logs[0].items() if key != "runs"} if len(logs) == 1 else {}
    return strict(
        {
            **only,  # so that `jq .class` does
            "schema": SCHEMA,
            "logs": logs,
            "errors": [{"path": path, "error": told} for path, told in errors],
            "compare": None if comparison is None else comparison.to_json(),
        }
    )


def _find(paths: Sequence[str]) -> tuple[list[Path], list[tuple[str, str]]]:
    """The logs that the arguments name, and which of them name none."""
    from foreshock.logs import find_logs  # noqa: PLC0415

    found: dict[Path, Path] = {}
    errors: list[tuple[str, str]] = []
    for given in paths:
        try:
            for log in find_logs([given]):
                found.setdefault(log.resolve(), log)
        except (ForeshockError, OSError) as error:
            errors.append((given, _sentence(error)))
    return list(found.values()), errors


def _inspect(path: Path, format: str | None, labels: Mapping[str, str]) -> "Inspection":  # noqa: A002
    from foreshock.inspection.inspect import inspect_log  # noqa: PLC0415
    from foreshock.logs import read_log  # noqa: PLC0415

    with _progress(f"reading {path.name}", _size(path)) as advance:
        log = read_log(path, format=format, labels=labels, progress=advance)
    readings = sum(run.num_values for run in log.runs)
    large = readings if _size(path) >= _LARGE_BYTES else 0
    with _progress(f"inspecting {path.name}", large, least=1) as advance:
        return inspect_log(log, progress=advance)


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)


@contextlib.contextmanager
def _progress(what: str, total: int, least: int = _LARGE_BYTES) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal for what takes a while; nothing otherwise."""
    console = Console(stderr=True)
    if total < least or not console.is_terminal:
        yield lambda number: None
        return
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    from foreshock.report.clean import clean_text  # noqa: PLC0415

    columns = (
        TextColumn("{task.fields[what]}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, what=clean_text(what))
        yield lambda number: bar.advance(task, number)


def _print(
    inspections: "Sequence[Inspection]",
    comparison: "Comparison | None",
    *,
    verbose: bool,
    all_outliers: bool,
) -> None:
    from foreshock.report.diagnosis_text import print_inspection, print_overview  # noqa: PLC0415

    with _console() as console:
        if comparison is not None:
            from foreshock.report.compare_text import print_comparison  # noqa: PLC0415

            print_comparison(comparison, console, verbose=verbose)
        elif len(inspections) > 1:
            print_overview(inspections, console)
        if (len(inspections) == 1 and comparison is None) or verbose or all_outliers:
            ranked = sorted(inspections, key=lambda one: one.run_class.severity)
            for place, one in enumerate(ranked):
                if place or len(inspections) > 1:
                    console.print()
                    console.print(Text("─" * min(console.width, 80), style="dim"))
                print_inspection(one, console, verbose=verbose, all_outliers=all_outliers)


@contextlib.contextmanager
def _console() -> Iterator[Console]:
    """A console whose text is written as far as the encoding of the output can say it."""
    from foreshock.report.blocks import to_ascii  # noqa: PLC0415

    console = Console(highlight=False)
    with console.capture() as captured:
        yield console
    text = captured.get()
    if not console.is_terminal:
        text = "\n".join(line.rstrip() for line in text.split("\n"))
    encoding = console.encoding
    try:
        "▁▂▃▄▅▆▇█×─→…·–−".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        text = to_ascii(text)
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def _print_errors(errors: Sequence[tuple[str, str]]) -> None:
    from foreshock.report.clean import clean_text  # noqa: PLC0415

    console = Console(stderr=True, highlight=False)
    for path, told in errors:
        message = told if path in told else f"{path}: {told}"
        line = clean_text(f"foreshock: {message}")
        console.print(line, style="red", markup=False, soft_wrap=True)


def _print_formats() -> None:
    from foreshock.logs import formats  # noqa: PLC0415

    known = formats()
    width = max(map(len, known), default=0)
    for name, title in sorted(known.items()):
        typer.echo(f"{name:<{width}}  {title}")


def _labels(given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in given:
        signal, equals, label = item.partition("=")
        if not equals or not signal.strip() or not label.strip():
            raise ConfigError(f"--map {item!r} is not of the form SIGNAL=LABEL")
        found[signal.strip()] = label.strip()
    return found


def _sentence(error: ForeshockError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'it'}: {error.strerror or error}"
    return str(error)
