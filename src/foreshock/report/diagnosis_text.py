"""A diagnosis for a terminal, one screen at 80 columns: the verdict first."""

from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foreshock.core.cause import Candidate, Evidence
from foreshock.inspection.finding import (
    Episode,
    Inspection,
    RunClass,
    RunFinding,
)
from foreshock.report import episode_words, words
from foreshock.report.clean import clean_text
from foreshock.report.small_charts import episode_chart, whole_chart

MAX_EPISODES: Final = 3
_MAX_CAUSES: Final = 3
_LEAST_SHARE: Final = 0.05
_MAX_ADVICE: Final = 3
_MAX_WARNINGS: Final = 4

_GOOD = frozenset({RunClass.HEALTHY, RunClass.BENIGN_OUTLIERS})
_BAD = frozenset(
    {
        *(RunClass.NAN, RunClass.LOSS_SCALE_COLLAPSE, RunClass.DIVERGENCE),
        RunClass.GRAD_NORM_EXPLOSION,
    }
)


def style_of(run_class: RunClass) -> str:
    """The colour of a class; the words say the same without it."""
    if run_class in _BAD:
        return "red"
    if run_class in _GOOD:
        return "green"
    return "cyan" if run_class is RunClass.NOT_JUDGEABLE else "yellow"


def print_inspection(
    one: Inspection, console: Console, *, verbose: bool = False, all_outliers: bool = False
) -> None:
    """Print what a log comes to. Every string of it is shown as it is, never as markup.

    Args:
        one: the inspection.
        console: where to; its width is kept.
        verbose: all episodes, causes, advice and warnings instead of the first few.
        all_outliers: each benign outlier on a line of its own.
    """
    finding = one.worst
    console.print(_verdict(finding))
    console.print(Text(_about(one), style="dim", overflow="fold"))
    _finding(finding, console, verbose=verbose, all_outliers=all_outliers)
    others = [other for other in one.findings if other is not finding]
    if others:
        console.print()
        console.print(Text(f"The file holds {words.count(len(others), 'more run')}:"))
        limit = len(others) if verbose else 6
        for other in sorted(others, key=lambda other: other.run_class.severity)[:limit]:
            line = Text(f"  run {other.run.number}, {episode_words.extent(other)}: ", style="dim")
            line.append(episode_words.title(other.run_class), style=style_of(other.run_class))
            line.append(f"  {clean_text(other.verdict)}")
            line.truncate(console.width, overflow="ellipsis")
            console.print(line)
        if len(others) > limit:
            console.print(Text(f"  and {len(others) - limit:,} more (-v shows all)", style="dim"))
    notes = one.notes if verbose else one.notes[:_MAX_WARNINGS]
    if notes:
        console.print()
    for note in notes:
        console.print(Padding(Text(f"note: {clean_text(note)}", style="dim"), (0, 0, 0, 0)))
    if len(one.notes) > len(notes):
        rest = len(one.notes) - len(notes)
        console.print(Text(f"note: and {rest:,} more (-v shows all)", style="dim"))


def print_overview(inspections: Sequence[Inspection], console: Console) -> None:
    """One line a log, the worst first."""
    ranked = sorted(inspections, key=lambda one: (one.run_class.severity, one.path))
    names = episode_words.short_paths([clean_text(one.path) for one in ranked])
    classes = [episode_words.title(one.run_class) for one in ranked]
    left = max(map(len, classes), default=0) + 2
    right = min(max(map(len, names), default=0), max(18, console.width // 4))
    middle = max(10, console.width - left - right - 2)
    for one, name, told in zip(ranked, names, classes, strict=True):
        line = Text(told.ljust(left), style=f"bold {style_of(one.run_class)}", no_wrap=True)
        verdict = Text(clean_text(one.worst.verdict))
        verdict.truncate(middle, overflow="ellipsis", pad=True)
        line.append_text(Text(verdict.plain, style="not bold default"))
        line.append("  ", style="not bold default")
        line.append(episode_words.cut_left(name, right), style="not bold default dim")
        console.print(line)
    troubled = sum(one.run_class.is_trouble for one in ranked)
    told = words.count(len(ranked), "log")
    console.print(
        Text(f"{told}, {troubled:,} with trouble. Details: -v, or one log alone.", style="dim")
    )


def _verdict(finding: RunFinding) -> Text:
    style = style_of(finding.run_class)
    line = Text(episode_words.title(finding.run_class).upper(), style=f"bold {style}")
    line.append(f"  {clean_text(finding.verdict)}", style="bold not dim default")
    return line


def _about(one: Inspection) -> str:
    finding = one.worst
    parts = [clean_text(one.path), clean_text(one.title)]
    if len(one.findings) > 1:
        parts.append(f"run {finding.run.number} of {len(one.findings)}")
    parts.append(episode_words.extent(finding))
    if finding.run.restarts:
        parts.append(words.count(len(finding.run.restarts), "restart"))
    return " · ".join(parts)


def _finding(finding: RunFinding, console: Console, *, verbose: bool, all_outliers: bool) -> None:
    ranked = episode_words.ranked(finding.episodes)
    shown = ranked if verbose else ranked[:MAX_EPISODES]
    for place, episode in enumerate(shown):
        console.print()
        _episode(finding, episode, console, full=verbose or place == 0)
    if len(ranked) > len(shown):
        rest = words.count(len(ranked) - len(shown), "more episode")
        console.print()
        console.print(Text(f"and {rest} of less weight (-v shows all)", style="dim"))
    if not ranked:
        chart = whole_chart(finding, console.width)
        if chart is not None:
            console.print()
            console.print(chart)
    _causes(finding, console, verbose=verbose)
    _said("Do", finding.advice, _MAX_ADVICE, "", console, verbose=verbose)
    _said("Mind", finding.warnings, _MAX_WARNINGS, "yellow", console, verbose=verbose)
    _outliers(finding, console, every=all_outliers)


def _episode(finding: RunFinding, episode: Episode, console: Console, *, full: bool) -> None:
    colour = "red" if episode_words.severe(episode) else "yellow"
    head = Text(_capital(episode_words.title(episode.kind)), style=f"bold {colour}")
    statement = clean_text(episode.statement)
    known = statement.casefold() in clean_text(finding.verdict).casefold()
    told = "" if known else f": {statement}"
    if not full:
        told = f": {episode_words.brief(episode)}"
    head.append(f", {episode_words.when(episode)}{told}", style="not bold default")
    console.print(head)
    chart = episode_chart(finding.run, episode, console.width, colour=colour, large=full)
    if chart is not None:
        console.print(chart)
    if full:
        console.print(_grid(episode_words.numbers(finding.run, episode)))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _causes(finding: RunFinding, console: Console, *, verbose: bool) -> None:
    if finding.diagnosis is None:
        return
    every = finding.diagnosis.candidates
    likely = [one for one in every if one.probability >= _LEAST_SHARE][:_MAX_CAUSES]
    rows: list[tuple[str, Text]] = []
    for one in every if verbose else likely or every[:1]:
        told = f"{words.plain(clean_text(one.cause))} {words.percent(one.probability)}"
        rows.append((told, _facts(one, verbose=verbose)))
    rows.append(("settled by", Text(clean_text(finding.diagnosis.top.settled_by))))
    console.print()
    console.print(Text("Likely causes, with the strongest evidence for and against", "bold"))
    console.print(_grid(rows))


def _facts(one: Candidate, *, verbose: bool) -> Text:
    ranked = sorted(one.evidence, key=lambda fact: -abs(fact.weight))
    chosen: list[Evidence] = ranked
    if not verbose:
        backing = [fact for fact in ranked if fact.weight >= 0][:1]
        chosen = backing + [fact for fact in ranked if fact.weight < 0][:1]
    lines = [f"{fact.weight:+.1f} {clean_text(fact.statement)}" for fact in chosen]
    return Text("\n".join(lines) or "no evidence for or against")


def _said(
    head: str,
    lines: Sequence[str],
    most: int,
    style: str,
    console: Console,
    *,
    verbose: bool,
) -> None:
    if not lines:
        return
    console.print()
    shown = lines if verbose else lines[:most]
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    for place, line in enumerate(shown):
        table.add_row(
            Text(head.ljust(4) if place == 0 else "", style=f"bold {style}".strip()),
            Text(f"{clean_text(line)}"),
        )
    if len(lines) > len(shown):
        table.add_row("", Text(f"and {len(lines) - len(shown)} more (-v shows all)", style="dim"))
    console.print(table)


def _outliers(finding: RunFinding, console: Console, *, every: bool) -> None:
    if not finding.num_outliers:
        return
    console.print()
    console.print(Text(episode_words.outliers(finding), style="dim"))
    if not every:
        return
    listed = [one for one in finding.episodes if not one.matters]
    for one in listed:
        console.print(Text(f"  {episode_words.outlier(one)}", style="dim"))
    if len(listed) < finding.num_outliers:
        rest = finding.num_outliers - len(listed)
        console.print(Text(f"  and {rest:,} more that were not kept", style="dim"))


def _grid(rows: Sequence[tuple[str, Text | str]]) -> Padding:
    body = Table.grid(padding=(0, 2))
    body.add_column(style="dim", max_width=22)
    body.add_column()
    for name, told in rows:
        body.add_row(Text(name), told if isinstance(told, Text) else Text(told))
    return Padding(body, (0, 0, 0, 2))
