"""The command `foreshock`."""

import sys
from typing import Any

import typer
from rich.console import Console

import foreshock
from foreshock.cli import (
    capabilities,
    demo,
    diagnose,
    export,
    minimize,
    quarantine,
    replay,
    report,
    run,
    samples,
    signals,
    snapshots,
    verify,
)
from foreshock.core.errors import ForeshockError
from foreshock.report.clean import clean_text

cli = typer.Typer(
    name="foreshock",
    help="Keeps large-model training runs stable.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    run,
    diagnose,
    demo,
    report,
    samples,
    export,
    signals,
    snapshots,
    verify,
    minimize,
    replay,
    capabilities,
):
    cli.command(module.__name__.rpartition(".")[2])(module.command)
cli.add_typer(quarantine.app, name="quarantine")


@cli.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and leave."),
) -> None:
    if version:
        print(foreshock.__version__)
        raise typer.Exit


def app(*arguments: Any) -> None:
    """Run the command line; a mistake of the user's is one sentence, never a traceback."""
    try:
        cli(*arguments)
    except ForeshockError as error:
        message = clean_text(f"foreshock: {error}")  # it may quote a file from anywhere
        Console(stderr=True).print(message, style="red", markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except OSError as error:
        message = clean_text(f"foreshock: {error.filename or 'a file'}: {error.strerror or error}")
        Console(stderr=True).print(message, style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "safetensors"):
            raise
        message = f"foreshock: this needs {error.name}: pip install 'foreshock[torch]'"
        Console(stderr=True).print(message, style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
