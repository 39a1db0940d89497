"""Charts of a diagnosis for a terminal: the loss and what moved first, around an episode."""

import math
from typing import Final

import numpy as np
from rich.text import Text

from foreshock.core.log import LoggedRun
from foreshock.core.names import GRAD_NORM
from foreshock.inspection.finding import Episode, RunFinding
from foreshock.report.blocks import MAX_COLUMNS, Bars, Sign, Span, axis, bars, span_of
from foreshock.report.clean import clean_text
from foreshock.report.log_curves import Window, around, movement_of, nearest, whole

_NAME: Final = 11
"""Characters of a signal's name, left of its chart."""

_SIDE: Final = 10
"""Characters of the least and the greatest value, right of it."""

_LOG_FROM: Final = {GRAD_NORM.name: 10.0, "loss_scale": 10.0}
_LOG_FROM_OTHERS: Final = 30.0
"""The span from which heights are logarithms, as in the HTML report."""


def episode_chart(
    run: LoggedRun, episode: Episode, width: int, *, colour: str, large: bool
) -> Text | None:
    """The loss and, beneath it, the first mover around an episode; None if none is logged."""
    part = around(run, episode)
    wanted = dict.fromkeys(("loss", episode.first_mover))
    windows = {name: one for name in wanted if (one := part(name)) is not None}
    room = width - _NAME - _SIDE
    if not windows or room < 8:
        return None
    span = span_of([one.clock for one in windows.values()], room)
    leading = next(iter(windows.values()))
    signs = _signs(run, episode, windows)
    start = min((sign.clock for sign in signs), default=span.first)
    ends = [sign.clock for sign in signs if sign.letter == "E"]
    hot = (span.column(start), (span.column(ends[0]) if ends else span.width) + span.fill)
    chart = Text(no_wrap=True)
    for place, (name, window) in enumerate(windows.items()):
        movement = movement_of(episode, name)
        before = window.values[(window.clock < start) & np.isfinite(window.values)]
        usual = movement.baseline if movement is not None else math.nan
        if not math.isfinite(usual):
            finite = window.values[np.isfinite(window.values)]
            usual = float(np.median(before if len(before) else finite)) if len(finite) else 0.0
        wide = _LOG_FROM.get(name, _LOG_FROM_OTHERS)
        rows = (3 if place == 0 else 2) if large else (2 if place == 0 else 1)
        drawn = bars(window.clock, window.values, span, rows, usual, wide)
        _add(chart, name, drawn, hot, colour)
    signs += [
        Sign("R", "restart", clock, int(leading.steps[leading.clock == clock][0]))
        for clock in leading.restarts
    ]
    _add_axis(chart, span, signs, room)
    return chart


def whole_chart(finding: RunFinding, width: int) -> Text | None:
    """The loss of a whole run (another signal, where it is not logged)."""
    names = [name for name in ("loss", *finding.run.series) if name in finding.run.series]
    names = [name for name in names if len(finding.run.series[name]) > 1]
    room = width - _NAME - _SIDE
    if not names or room < 8:
        return None
    window = whole(finding.run.series[names[0]])
    span = span_of([window.clock], min(room, MAX_COLUMNS))
    wide = _LOG_FROM.get(names[0], _LOG_FROM_OTHERS)
    chart = Text(no_wrap=True)
    drawn = bars(window.clock, window.values, span, 4, math.nan, wide)
    _add(chart, names[0], drawn, (0, 0), "default")
    ends = [
        Sign("─", "step", span.first, int(window.steps[0])),
        Sign("─", "step", span.last, int(window.steps[-1])),
    ]
    restarts = [
        Sign("R", "restart", clock, int(window.steps[window.clock == clock][0]))
        for clock in window.restarts
    ]
    _add_axis(chart, span, ends + restarts, room)
    return chart


def _signs(run: LoggedRun, episode: Episode, windows: dict[str, Window]) -> list[Sign]:
    """Onset, peak and end: by the loss where it is drawn, the peak by the loss's own."""
    name, window = next(iter(windows.items()))
    series = run.series[name]
    middle = int(window.clock[len(window.clock) // 2])
    movement = movement_of(episode, name)
    peak_step = movement.peak_step if movement is not None else episode.peak_step
    peak = nearest(series, peak_step, middle)
    at = int(series.clock[peak])
    onset = int(series.clock[nearest(series, episode.onset_step, at)])
    signs = [Sign("O", "onset", min(onset, at), episode.onset_step)]
    if episode.end_step is not None:
        end = int(series.clock[nearest(series, episode.end_step, at, after=peak)])
        if end <= int(window.clock[-1]):
            signs.append(Sign("E", "end", end, episode.end_step))
    signs.append(Sign("P", "peak", at, peak_step))
    return signs


def _add(chart: Text, name: str, drawn: Bars, hot: tuple[int, int], colour: str) -> None:
    last = len(drawn.rows) - 1
    for row, line in enumerate(drawn.rows):
        label = clean_text(name)[: _NAME - 1] if row == 0 else ""
        if row == 1 and drawn.log:
            label = "log scale"
        chart.append(label.ljust(_NAME), style="dim" if row else "")
        chart.append(line[: hot[0]])
        chart.append(line[hot[0] : hot[1]], style=colour)
        chart.append(line[hot[1] :])
        value = drawn.high if row == 0 else drawn.low if row == last else math.nan
        if math.isfinite(value):
            chart.append(f" {_short(value)}", style="dim")
        chart.append("\n")


def _add_axis(chart: Text, span: Span, signs: list[Sign], room: int) -> None:
    line, beneath = axis(span, signs, room + _SIDE)
    chart.append(" " * _NAME)
    marked = Text(line, style="dim")
    marked.highlight_regex(r"[^─]", style="bold not dim")
    chart.append_text(marked)
    chart.append(f"\n{' ' * _NAME}{beneath}", style="dim")


def _short(value: float) -> str:
    """A value in nine characters.

    >>> _short(0.000123456), _short(11.4237), _short(-1.5e300)
    ('0.000123', '11.4', '-1.5e+300')
    """
    return f"{value:.3g}"
