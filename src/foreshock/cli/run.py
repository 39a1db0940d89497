"""`foreshock run`: trains a Program under the Guard."""

import dataclasses
import json as json_format
import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from foreshock.core.errors import ConfigError, Halted, Stopped
from foreshock.report.clean import clean_text


def command(  # noqa: PLR0917 - the options of a command line
    program: Annotated[str, typer.Argument(help="PATH.py:function that returns a Program.")],
    run_dir: Annotated[Path, typer.Option(help="Where the run is recorded.")],
    max_steps: Annotated[int, typer.Option(help="Optimizer steps to stop after.", min=1)],
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run there.")] = False,
    seed: Annotated[int, typer.Option(help="Seeds every generator.")] = 0,
    device: Annotated[str, typer.Option(help="Where to train.")] = "cpu",
    config: Annotated[Path | None, typer.Option(help="A recipe as TOML.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE for Settings.overrides.")
    ] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="Journal what would be done; do nothing of it.")
    ] = False,
    minimize: Annotated[
        bool | None,
        typer.Option(
            "--minimize/--no-minimize",
            help="After a recovery, search in a process of low priority for the samples that "
            "cause it, and give the others back. On by default where the training is on the CPU.",
        ),
    ] = None,
    minimize_minutes: Annotated[
        float, typer.Option(help="Wall time for one such search.", min=0.0)
    ] = 30.0,
    grace_secs: Annotated[
        float, typer.Option(help="From SIGTERM or SIGUSR1 to SIGKILL.", min=1.0)
    ] = 30.0,
    check_determinism: Annotated[
        bool,
        typer.Option(
            "--check-determinism",
            help="First run a few steps twice from one state, and say whether all bits agree.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Train a Program to the end: skip, roll back, quarantine, verify, give back, go on.

    Exit code 0 if it finished, 3 if the policy halted it, 75 if SIGTERM or SIGUSR1 stopped it
    (--resume goes on), 2 if it could not start.
    """
    from foreshock import recipes  # noqa: PLC0415 - the command line starts without torch
    from foreshock.background import BackgroundSearch, minimize_command  # noqa: PLC0415
    from foreshock.core.program import Settings  # noqa: PLC0415
    from foreshock.driver import build, guard_for, load_program, train  # noqa: PLC0415

    settings = Settings(
        seed=seed, device=device, max_steps=max_steps, overrides=overrides_of(override or [])
    )
    function = load_program(program)
    recipe = recipes.load(config) if config is not None else recipes.standard()
    if advise:
        recipe = dataclasses.replace(recipe, advise=True)
    console = Console(stderr=True, quiet=as_json)
    checked = _checked(function, settings, recipe) if check_determinism else None
    if checked is not None:
        _teller(console)(checked.sentence)
    built = build(function, settings)
    name = program.rpartition(":")[2]
    bar = _progress(console, max_steps)
    by_hand = shlex.join(["foreshock", "minimize", str(run_dir), "--program", program])
    search: BackgroundSearch | None = None
    if minimize or (minimize is None and device == "cpu" and not recipe.advise):
        command_line = minimize_command(
            run_dir,
            program,
            settings,
            config=config,
            overrides=override or [],
            minutes=minimize_minutes,
        )
        search = BackgroundSearch(
            command_line, run_dir, secs=60 * minimize_minutes, tell=_teller(console)
        )
    guards: list[Any] = []
    plain = _listener(bar, console, run_dir, None if search is not None else by_hand)

    def listen(kind: str, content: Any) -> None:
        plain(kind, content)
        if search is not None and guards:
            search.look(kind, lambda: guards[0].records)

    guard = guard_for(
        built,
        name=name,
        run_dir=run_dir,
        recipe=recipe,
        max_steps=max_steps,
        resume=resume,
        listener=listen,
        grace_secs=grace_secs,
    )
    guards.append(guard)
    try:
        with guard, bar:
            if checked is not None:
                guard.note("determinism", **checked.to_json())
            with suppress(Halted, Stopped):
                train(built, guard)
            outcome = _outcome(guard, run_dir)
    finally:
        unfinished = search.close() if search is not None else None
    if unfinished is not None:
        _teller(console)(
            f"incident {unfinished}: the search behind the run ended with it; it begins again "
            f"when the run is resumed, or by hand: {by_hand}"
        )
    typer.echo(json_format.dumps(outcome, allow_nan=False) if as_json else _sentence(outcome))
    if guard.halted is not None:
        raise typer.Exit(Halted.exit_code)
    if guard.stopped is not None:
        raise typer.Exit(Stopped.exit_code)


def _checked(function: Any, settings: Any, recipe: Any) -> Any:
    """Whether steps run twice agree, of a program of its own: the run does not notice."""
    from foreshock.determinism import check_determinism  # noqa: PLC0415
    from foreshock.driver import build  # noqa: PLC0415

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--check-determinism runs steps on one process; leave it out on several")
    return check_determinism(build(function, settings), recipe)


def _outcome(guard: Any, run_dir: Path) -> dict[str, Any]:
    return {
        "run_dir": str(run_dir),
        "step": guard.step_number,
        "attempt": guard.attempt,
        "halted": guard.halted,
        "stopped": guard.stopped,
        "num_incidents": len(guard.book.incidents),
        "num_advices": len(guard.book.advices),
        "num_quarantined": guard.num_quarantined,
        "digest": guard.digest() if guard.stopped is None else None,  # there is no time for it
    }


def _sentence(outcome: dict[str, Any]) -> str:
    if outcome["halted"] is not None:
        return f"{clean_text(outcome['halted'])}\nThe note is in {outcome['run_dir']}/handover.md"
    if outcome["stopped"] is not None:
        return f"The run was {outcome['stopped']}"
    advices = outcome["num_advices"]
    advised = f"{advices} piece(s) of advice, none carried out, " if advices else ""
    return (
        f"Finished at step {outcome['step']}: {outcome['num_incidents']} incident(s), {advised}"
        f"{outcome['num_quarantined']} samples set aside.\n"
        f"Next: foreshock report {outcome['run_dir']}"
    )


def _progress(console: Console, max_steps: int) -> Progress:
    bar = Progress(
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    bar.add_task("train", total=max_steps, loss="-")
    return bar


def _teller(console: Console) -> Callable[[str], None]:
    def tell(line: str) -> None:
        console.print(clean_text(line), markup=False, soft_wrap=True)

    return tell


def _listener(bar: Progress, console: Console, run_dir: Path, by_hand: str | None) -> Any:
    """Shows what the run tells; `by_hand` is what is left to a person after a recovery."""
    task = bar.tasks[0].id
    tell = _teller(console)

    def listen(kind: str, content: Any) -> None:
        if kind == "step":
            row, series = content["row"], content["series"]
            known = "loss/global" in series
            loss = f"{row.values[series.index('loss/global')]:.4g}" if known else "-"
            bar.update(task, completed=row.step, loss=loss)
        elif kind == "plan":
            tell(f"step {bar.tasks[0].completed:.0f}: {content['plan'].plan.why}")
        elif kind == "advice":
            tell(f"step {content['step']}: advice, not carried out: {content['plan']['why']}")
        elif kind == "action":
            tell(f"  {content['result']}")
        elif kind == "verification":
            tell("  verified" if content["passed"] else "  verification failed")
        elif kind == "waiting":
            tell(f"  waits for you: touch {run_dir / 'resume.now'}")
        elif kind == "strengthen_data":
            fell = ", ".join(content["capabilities"])
            tell(f"  {fell} fell, and no older state helps: strengthen {content['data']}")
        elif kind == "incident_closed" and content["outcome"] == "recovered" and by_hand:
            tell(f"  what was set aside can be narrowed down: {by_hand}")
        elif kind == "minimized":
            num = len({tuple(key) for keys in content["given_back"].values() for key in keys})
            tell(f"incident {content['incident']}: {num:,} samples given back")

    return listen


def overrides_of(given: list[str]) -> dict[str, Any]:
    """The overrides that `--set NAME=VALUE` options name."""
    found: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set {item!r} is not of the form NAME=VALUE")
        try:
            found[name] = json_format.loads(text)
        except ValueError:
            found[name] = text
    return found
