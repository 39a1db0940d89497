"""Curves as Bokeh figures that stand on a light and on a dark page alike."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from bokeh.core.properties import value
from bokeh.embed import components
from bokeh.models import (
    BoxAnnotation,
    FixedTicker,
    HoverTool,
    LinearScale,
    NumeralTickFormatter,
    Range1d,
    Span,
)
from bokeh.plotting import figure
from bokeh.resources import Resources

from foreshock.core.names import GRAD_NORM, LR, STANDARD, UPDATE_RATIO, split_series
from foreshock.report.curves import Curve, Floats, Ints, axis_limits, log_ticks, wants_log
from foreshock.report.words import plain

INK: Final = "#77808a"
MAIN: Final = "#3a82c4"
BROKEN: Final = "#d5443b"
OTHERS: Final = ("#c9812f", "#2f9e75", "#9b6bc3", "#8a8f3a", "#c45a8d")
TONES: Final = {
    "recovered": "#3f9d63",
    "halted": "#d5443b",
    "open": "#cf9a2b",
    "severe": "#d5443b",
    "mild": "#cf9a2b",
}

_UNITS: Final = {signal.name: signal.unit for signal in STANDARD if signal.unit != "1"}
_TITLES: Final = {GRAD_NORM.name: "gradient norm", LR.name: "learning rate"}
_LOG_ALWAYS: Final = frozenset({GRAD_NORM.name, UPDATE_RATIO.name})
_UNSAFE: Final = re.compile(r"[^\w .,:/()\[\]+-]")
_EDGE: Final = "edge"


class Band(NamedTuple):
    """An incident or episode on the step axis: from its onset to its recovery."""

    number: int
    start: int
    end: int
    outcome: str


class Rule(NamedTuple):
    """A step to be marked over the whole height: `kind` is "dotted" or "dashed"."""

    step: int
    label: str
    kind: str = "dotted"


class Point(NamedTuple):
    """A value to be marked on the curve."""

    step: int
    value: float


class Swatch(NamedTuple):
    """An entry of a chart's legend, which the page draws: `kind` is a class of the page."""

    colour: str
    kind: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure with what the page says about it."""

    key: str
    title: str
    unit: str
    note: str
    swatches: tuple[Swatch, ...]
    figure: Any


def run_chart(
    key: str,
    curve: Curve,
    others: Mapping[str, Curve],
    bands: Sequence[Band],
    x_range: Range1d,
    *,
    height: int = 230,
    rules: Sequence[Rule] = (),
    points: Sequence[Point] = (),
    main: str = "",
    with_unit: bool = True,
) -> Chart:
    """The chart of one series: the run, what it undid, and other runs to compare with.

    Args:
        key: names the chart's place in the page.
        curve: the run.
        others: other runs, by the name to show.
        bands: stretches to shade.
        x_range: the step axis, which charts may share.
        height: in pixels.
        rules: steps to be marked.
        points: peaks to be marked; those that are not finite are left out.
        main: what the legend calls the run.
        with_unit: whether the signal's own unit holds for it.
    """
    signal, scope = split_series(curve.series)
    beside = [other.values[np.isfinite(other.values)] for other in others.values()]
    every = np.concatenate([curve.finite, *beside])
    log = signal != LR.name and wants_log(every, always=signal in _LOG_ALWAYS)
    fig = _figure(every, log=log, x_range=x_range, height=height)
    _draw_bands(fig, bands)
    swatches = [Swatch(MAIN, "line", main or ("this run" if others else "as it counts"))]
    for rule in rules:
        dash = [2, 3] if rule.kind == "dotted" else [6, 3]
        fig.add_layout(
            Span(
                location=rule.step,
                dimension="height",
                line_color=INK,
                line_dash=dash,
                line_width=1,
            )
        )
    for label, kind in dict.fromkeys((rule.label, rule.kind) for rule in rules):
        swatches.append(Swatch(INK, kind, label))
    for at, values in curve.undone:
        fig.line(at, _drawn(values, log), color=INK, alpha=0.75, line_width=1.3)
    if curve.undone:
        swatches.append(Swatch(INK, "faded", "undone by a rollback"))
    for colour, (name, other) in zip(_cycle(len(others)), others.items(), strict=True):
        _line(fig, other.steps, _drawn(other.values, log), colour, name)
        _draw_marks(fig, other, colour)
        swatches.append(Swatch(colour, "line", name))
    _line(fig, curve.steps, _drawn(curve.values, log), MAIN, curve.series)
    _draw_marks(fig, curve, BROKEN)
    peaks = [one for one in points if math.isfinite(one.value) and (one.value > 0 or not log)]
    if peaks:
        at, height_at = zip(*peaks, strict=True)
        fig.scatter(at, height_at, size=9, fill_color=None, line_color=BROKEN, line_width=2)
        swatches.append(Swatch(BROKEN, "ring", "peak"))
    if any(one.marks for one in (curve, *others.values())):
        swatches.append(Swatch(BROKEN, "mark", "NaN or Inf"))
    below = log and bool((every <= 0).any())
    if below:
        _draw_below(fig, curve)
        swatches.append(Swatch(MAIN, "below", "zero or less"))
    notes = ["log scale"] if log else []
    if len(curve.steps) < curve.longest:
        notes.append(f"{curve.longest:,} steps thinned, extremes kept")
    return Chart(
        key=key,
        title=_TITLES.get(signal, plain(signal)) + ("" if scope == "global" else f" · {scope}"),
        unit=_UNITS.get(signal, "") if with_unit else "",
        note=", ".join(notes),
        swatches=tuple(swatches),
        figure=fig,
    )


def held_out_chart(key: str, curves: Mapping[str, tuple[Ints, Floats]]) -> Chart:
    """Held-out loss over the steps that were executed, one line a run."""
    colours = _ranked(curves)
    label = "steps executed, undone ones included"
    return lines_chart(key, curves, colours, title="held-out loss", unit="nats", x_label=label)


def lines_chart(
    key: str,
    curves: Mapping[str, tuple[Ints, Floats]],
    colours: Sequence[str],
    *,
    title: str,
    unit: str = "",
    x_label: str = "step",
) -> Chart:
    """Several runs in one chart, one line a run; none is more than another."""
    finite = [values[np.isfinite(values)] for _, values in curves.values()]
    every = np.concatenate(finite) if finite else np.zeros(0)
    steps = [int(at[-1]) for at, _ in curves.values() if len(at)]
    log = wants_log(every)
    x_range = step_range(0, max(steps, default=1))
    fig = _figure(every, log=log, x_range=x_range, height=260)
    fig.xaxis.axis_label = x_label
    swatches: list[Swatch] = []
    for colour, (name, (at, values)) in zip(colours, curves.items(), strict=True):
        _line(fig, at, _drawn(values, log), colour, name, width=2.0)
        broken = at[~np.isfinite(values)]
        if len(broken):
            _scatter_edge(fig, broken, np.ones(len(broken), bool), colour)
        swatches.append(Swatch(colour, "line", name))
    return Chart(
        key=key,
        title=title,
        unit=unit,
        note="log scale" if log else "",
        swatches=tuple(swatches),
        figure=fig,
    )


def step_range(first: int, last: int) -> Range1d:
    """The step axis that charts share."""
    room = max(1.0, (last - first) * 0.015)
    return Range1d(start=first - room, end=last + room, bounds=(first - 4 * room, last + 4 * room))


def embed(*groups: Sequence[Chart]) -> tuple[str, str, dict[str, str]]:
    """BokehJS itself, the scripts that draw, and the element of each chart by its key.

    Charts that share an axis belong into one group. Groups are embedded apart, since Bokeh's
    time grows with the square of what is embedded together.
    """
    scripts: list[str] = []
    found: dict[str, str] = {}
    for group in groups:
        if group:
            script, elements = components({chart.key: chart.figure for chart in group})
            scripts.append(script)
            found |= elements
    if not found:
        return "", "", {}
    library = Resources(mode="inline", components=["bokeh"]).render()
    return library, "\n".join(scripts), found


def _figure(values: Floats, *, log: bool, x_range: Range1d, height: int) -> Any:
    low, high = axis_limits(values, log=log)
    fig: Any = figure(
        height=height,
        sizing_mode="stretch_width",
        x_range=x_range,
        y_range=Range1d(start=low, end=high),
        y_axis_type="log" if log else "linear",
        tools="xbox_zoom,xpan,reset",
        active_drag="xbox_zoom",
        toolbar_location="above",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_left=58,
        min_border_right=8,
        lod_threshold=None,
    )
    fig.toolbar.logo = None
    fig.toolbar.autohide = True
    fig.extra_y_ranges = {_EDGE: Range1d(start=0.0, end=1.0)}
    fig.extra_y_scales = {_EDGE: LinearScale()}  # else that of the main axis, which may be log
    for axis in (fig.xaxis, fig.yaxis):
        axis.axis_line_color = INK
        axis.axis_line_alpha = 0.5
        axis.major_tick_line_color = INK
        axis.minor_tick_line_color = None
        axis.major_label_text_color = INK
        axis.axis_label_text_color = INK
        axis.axis_label_text_font_style = "normal"
        axis.major_label_text_font_size = axis.axis_label_text_font_size = "12px"
        axis.major_label_text_font = axis.axis_label_text_font = "system-ui, sans-serif"
    fig.xaxis.axis_label = "step"
    fig.xaxis.formatter = NumeralTickFormatter(format="0,0")
    if log:
        ticks = log_ticks(low, high)
        fig.yaxis.ticker = FixedTicker(ticks=list(ticks))
        fig.ygrid.ticker = fig.yaxis[0].ticker
        fig.yaxis.major_label_overrides = ticks
    else:
        fig.yaxis.ticker.desired_num_ticks = 5
    fig.grid.grid_line_color = INK
    fig.xgrid.grid_line_alpha = 0.0
    fig.ygrid.grid_line_alpha = 0.22
    return fig


def _line(
    fig: Any, steps: Ints, values: Floats, colour: str, name: str, *, width: float = 1.5
) -> None:
    drawn = fig.line(steps, values, color=colour, line_width=width)
    if len(steps) == 1:
        drawn = fig.scatter(steps, values, color=colour, size=6)
    label = _UNSAFE.sub("?", name)[:60]  # Bokeh may read text as mathematics and fetch a font
    tips = [("step", "@x{0,0}"), (label, "@y{0.0000e+0}")]
    fig.add_tools(HoverTool(renderers=[drawn], tooltips=tips, mode="vline", visible=False))


def _draw_bands(fig: Any, bands: Sequence[Band]) -> None:
    for band in bands:
        tone = TONES.get(band.outcome, INK)
        fig.add_layout(
            BoxAnnotation(
                left=band.start,
                right=max(band.end, band.start),
                fill_color=tone,
                fill_alpha=0.16,
                line_color=tone,
                line_alpha=0.55,
                level="underlay",
                propagate_hover=True,
            )
        )
    if bands:
        fig.text(
            x=[band.start for band in bands],
            y=[0.99] * len(bands),
            text=[f"{band.number}" for band in bands],
            y_range_name=_EDGE,
            text_color=[TONES.get(band.outcome, INK) for band in bands],
            text_font_size="12px",
            text_font_style="bold",
            text_font=value("system-ui, sans-serif"),
            text_baseline="top",
            text_align="right",
            x_offset=-3,
        )


def _draw_marks(fig: Any, curve: Curve, colour: str) -> None:
    if curve.marks:
        at = np.array([mark.step for mark in curve.marks])
        _scatter_edge(fig, at, np.array([not mark.undone for mark in curve.marks]), colour)


def _scatter_edge(fig: Any, at: Ints, counts: Any, colour: str) -> None:
    fig.scatter(
        at,
        np.full(len(at), 0.965),
        marker="inverted_triangle",
        size=9,
        fill_color=colour,
        fill_alpha=np.where(counts, 0.95, 0.35),
        line_color=None,
        y_range_name=_EDGE,
    )


def _draw_below(fig: Any, curve: Curve) -> None:
    """On a logarithmic axis zero has no place: a small triangle at the bottom edge."""
    at = curve.steps[curve.values <= 0]
    fig.scatter(
        at,
        np.full(len(at), 0.03),
        marker="triangle",
        size=6,
        fill_color=MAIN,
        fill_alpha=0.7,
        line_color=None,
        y_range_name=_EDGE,
    )


def _drawn(values: Floats, log: bool) -> Floats:
    return np.where(np.isfinite(values) & ((values > 0) | (not log)), values, np.nan)


def _cycle(number: int) -> list[str]:
    return [OTHERS[place % len(OTHERS)] for place in range(number)]


def _ranked(names: Mapping[str, Any]) -> list[str]:
    """Guarded in the run's own colour, the unguarded run in the colour of what went wrong."""
    fixed = {"guarded": MAIN, "unguarded": BROKEN, "untouched twin": OTHERS[1]}
    spare = iter(_cycle(len(names)))
    return [fixed.get(name) or next(spare) for name in names]
