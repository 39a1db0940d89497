"""Runs side by side for a terminal: a table, and what follows from it."""

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from foreshock.report import episode_words, words
from foreshock.report.compare_result import ComparedRun, Comparison
from foreshock.report.diagnosis_text import style_of

MAX_ROWS = 40
"""Runs in the table; the conclusions and the JSON speak of all. Our choice: one screen."""

_LEAST_NAME = 10
_BEST_FROM_WIDTH = 90
_MOVER = 9
"""Characters of what moved first: `grad_norm` fits."""


def print_comparison(one: Comparison, console: Console, *, verbose: bool = False) -> None:
    """Print runs side by side; every string of a log is shown as it is."""
    console.print(Text(f"{words.count(len(one.runs), 'run')} side by side", style="bold"))
    shown = one.runs if verbose else one.runs[:MAX_ROWS]
    with_best = console.width >= _BEST_FROM_WIDTH
    heads = ["class", "lr", "spikes", "onset", "first", "final", "best"]
    left = {"class", "first"}
    rows = [dict(zip(heads, _cells(run), strict=True)) for run in shown]
    heads = [head for head in heads if head != "lr" or one.by_lr]
    heads = [head for head in heads if head != "best" or with_best]
    taken = sum(1 + max([len(head), *(len(row[head]) for row in rows)]) for head in heads)
    room = max(_LEAST_NAME, console.width - taken)
    table = Table(
        box=None, pad_edge=False, padding=(0, 1), collapse_padding=True, header_style="dim"
    )
    table.add_column("run", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", no_wrap=True)
    for run, row in zip(shown, rows, strict=True):
        name = Text(episode_words.cut_left(run.name, room))
        table.add_row(name, *(row[head] for head in heads))
    console.print(table)
    if len(one.runs) > len(shown):
        more = len(one.runs) - len(shown)
        console.print(Text(f"and {more:,} more, of lesser weight (-v shows all)", style="dim"))
    if one.by_lr:
        console.print()
        rates = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
        for name in ("learning rate", "runs", "with trouble", "final loss (median)"):
            rates.add_column(name, justify="right", no_wrap=True)
        for group in one.by_lr:
            rates.add_row(
                f"{group.lr:g}",
                f"{group.num_runs}",
                Text(f"{group.num_troubled}", style="red" if group.num_troubled else ""),
                _loss(group.final_loss),
            )
        console.print(rates)
    console.print()
    for told in one.conclusions:
        line = Table.grid(padding=(0, 1))
        line.add_row("-", Text(told))
        console.print(line)


def _cells(run: ComparedRun) -> list[Text]:
    return [
        Text(episode_words.title(run.run_class), style=style_of(run.run_class)),
        Text(f"{run.lr:g}" if math.isfinite(run.lr) else "?"),
        Text(f"{run.num_spikes}"),
        Text("" if run.onset_step is None else f"{run.onset_step:,}"),
        Text(run.first_mover[:_MOVER]),
        Text(_loss(run.final_loss)),
        Text(_loss(run.best_loss)),
    ]


def _loss(value: float) -> str:
    return "NaN" if math.isnan(value) else words.figure(value)
