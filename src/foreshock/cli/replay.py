"""`foreshock replay`: experiments on an incident, until its cause is settled."""

import json as json_format
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from foreshock.cli.run import overrides_of
from foreshock.core.errors import ConfigError
from foreshock.report.clean import clean_text

if TYPE_CHECKING:
    from foreshock.core.experiment import Experiment
    from foreshock.scene import Scene
    from foreshock.settling import Settlement

_SECS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_BUDGET: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|steps)")
_CAUSES: Final = 5
_FACTS: Final = 4
_OPEN: Final = 5
_NEAR_STEPS: Final = 5
_SHOWN_SERIES: Final = ("loss", "grad_norm", "loss_scale", "lr")


def command(  # noqa: PLR0917 - the options of a command line
    program: Annotated[
        str, typer.Argument(help="PATH.py:function that returns the run's Program.")
    ],
    run_dir: Annotated[Path, typer.Option(help="The run directory.")],
    incident: Annotated[
        int | None, typer.Option(help="Number of the incident; the last one by default.", min=1)
    ] = None,
    experiments: Annotated[
        str | None, typer.Option(help="Just these, in this order: NAME,NAME,…")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="An investigation: `batch`, the five steps for a batch.")
    ] = None,
    budget: Annotated[
        str, typer.Option(help="Time or steps: 30s, 10m, 1h or 500steps; none begins after it.")
    ] = "10m",
    max_steps: Annotated[
        int, typer.Option(help="Optimizer steps that the run was started with.", min=1)
    ] = 1000,
    seed: Annotated[int, typer.Option(help="The run's seed.")] = 0,
    device: Annotated[str, typer.Option(help="Where to replay.")] = "cpu",
    config: Annotated[Path | None, typer.Option(help="The run's recipe as TOML.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE for Settings.overrides.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find out by experiment why an incident happened.

    From snapshots its steps are trained again with one thing changed: an older state, other
    batches, samples left out, another precision, rate or moments. The most telling experiment for
    its steps comes next, until the cause is settled. Settings must be those of the run, which is
    only read; the results are kept in RUN/replays.

    Exit code 0 if the cause is settled, 1 if it is not, 2 for mistakes.
    """
    is_spent_at = _budget(budget)
    if experiments is not None and preset is not None:
        raise ConfigError("give --experiments or --preset, not both")
    from foreshock import recipes  # noqa: PLC0415 - the command line starts without torch
    from foreshock.core.program import Settings  # noqa: PLC0415
    from foreshock.driver import build, load_program  # noqa: PLC0415
    from foreshock.durable import RealDisk  # noqa: PLC0415
    from foreshock.replays import write_replay  # noqa: PLC0415
    from foreshock.scene_of_run import scene_of  # noqa: PLC0415
    from foreshock.settling import (  # noqa: PLC0415
        PRESETS,
        by_case,
        experiments_named,
        settle,
    )

    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"there is no preset {preset!r}; there are {', '.join(PRESETS)}")
    names = PRESETS[preset] if preset is not None else None
    if experiments is not None:
        names = tuple(one.strip() for one in experiments.split(",") if one.strip())
    chosen = None if names is None else experiments_named(names)
    settings = Settings(
        seed=seed, device=device, max_steps=max_steps, overrides=overrides_of(override or [])
    )
    recipe = recipes.load(config) if config is not None else recipes.standard()
    console = Console(stderr=True, quiet=as_json)
    with scene_of(
        run_dir, build(load_program(program), settings), recipe, incident=incident
    ) as scene:
        assert scene.case is not None
        number, num_plans = scene.case.incident.id, len(scene.case.incident.plans)
        if preset == "batch" and not as_json:
            _show_timeline(scene)
        bar = _Bar(console, scene)
        with bar.progress:
            found = settle(
                scene,
                by_case(scene, recipe),
                recipe.causes,
                experiments=chosen,
                in_order=chosen is not None,
                is_spent=is_spent_at(scene),
                begin=bar.begin,
                tell=lambda one: _tell(console, one),
            )
    path = write_replay(RealDisk(), run_dir, number, num_plans, found)
    if as_json:
        told = {"incident": number, "file": str(path), **found.to_json()}
        print(json_format.dumps(told, allow_nan=False))
    else:
        _show(number, found, path)
    if not found.is_settled:
        raise typer.Exit(1)


def _budget(text: str) -> "Callable[[Scene], Callable[[], bool]]":
    """What says whether a budget is spent, of seconds or of steps."""
    match = _BUDGET.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--budget {text!r} must be like 30s, 10m, 1h or 500steps")
    amount, unit = float(match[1]), match[2]
    if unit == "steps":
        return lambda scene: lambda: scene.steps_trained >= amount
    until = time.monotonic() + amount * _SECS[unit]
    return lambda scene: lambda: time.monotonic() >= until


class _Bar:
    """Steps trained for the experiment at hand, of about as many as it takes."""

    def __init__(self, console: Console, scene: "Scene") -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("step {task.completed:.0f} of about {task.total:.0f}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._scene = scene
        self._task = self.progress.add_task("replay", total=scene.num_steps)
        scene.on_step = self._step

    def begin(self, experiment: "Experiment") -> None:
        total = math.ceil(experiment.windows * self._scene.num_steps)
        self.progress.reset(self._task, description=experiment.name, total=total)

    def _step(self) -> None:
        self.progress.advance(self._task)


def _tell(console: Console, one: Any) -> None:
    if one.result is None:
        line = f"{one.experiment}: no result: {one.reason}"
    else:
        line = f"{one.experiment}: {one.result.outcome}; {one.moved}\n  {one.result.statement}"
    console.print(clean_text(line), markup=False, highlight=False, soft_wrap=True)


def _show_timeline(scene: "Scene") -> None:
    """The first of the five steps: loss, gradient norm, scale and rate on one timeline."""
    recorded = scene.recorded
    names = [
        name for signal in _SHOWN_SERIES for name in recorded.series if name == f"{signal}/global"
    ]
    table = Table(title="steps around the onset")
    for head in ("step", *(name.removesuffix("/global") for name in names)):
        table.add_column(head, justify="right")
    for step in sorted(recorded.rows):
        if step >= scene.onset_step - _NEAR_STEPS:
            committed, values = recorded.rows[step]
            mark = "" if committed else " (skipped)"
            row = [f"{float(values[recorded.series.index(name)]):.4g}" for name in names]
            table.add_row(f"{step}{mark}", *row)
    Console().print(table)
    facts = scene.batch_findings()
    said = [one.statement for one in facts or []] or ["nothing stands out in the window's samples"]
    for line in said:
        Console().print(clean_text(f"samples: {line}"), markup=False)


def _show(number: int, found: "Settlement", path: Path) -> None:
    console = Console()
    title = f"incident {number}: {found.after.top.cause}"
    table = Table(title=Text(clean_text(title)))
    table.add_column("cause")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_column("for and against", overflow="fold")
    before = {one.cause: one.probability for one in found.before.candidates}
    for one in found.after.candidates[:_CAUSES]:
        facts = sorted(one.evidence, key=lambda fact: -abs(fact.weight))[:_FACTS]
        said = "\n".join(f"{fact.weight:+.1f} {fact.statement}" for fact in facts)
        table.add_row(
            Text(clean_text(one.cause)),
            f"{before.get(one.cause, 0.0):.0%}",
            f"{one.probability:.0%}",
            Text(clean_text(said)),
        )
    console.print(table)
    for line in _lines(found, path):
        console.print(clean_text(line), markup=False, highlight=False)


def _lines(found: "Settlement", path: Path) -> list[str]:
    lines = [
        f"{'Settled' if found.is_settled else 'Not settled'}: {found.why}. "
        f"{found.num_steps:,} steps trained{_exactness(found.exact)}"
    ]
    lines += [f"not told: {o.experiment}: {o.reason}" for o in found.told if o.result is None]
    telling = [one for one in found.still_open if one.nats > 0][:_OPEN]
    lines += [
        f"open: {one.experiment} ({one.question}) tells {one.nats:.2f} nats for about "
        f"{one.num_steps:,} steps"
        for one in telling
    ]
    return [*lines, f"by hand: {found.after.top.settled_by}", f"kept in {path}"]


def _exactness(exact: bool | None) -> str:
    if exact is None:
        return ""
    return (
        "; those before the onset as in the run, bit by bit"
        if exact
        else "; those before the onset NOT bit by bit those of the run"
    )
