"""The report as one HTML file that needs nothing else: no network, no other file."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foreshock.core.names import LOSS, series_name
from foreshock.core.reading import from_json_number
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from foreshock.report import words
from foreshock.report.clean import clean_text, whole
from foreshock.report.curves import Floats, Ints, Lineage, chosen_series, read_lineage
from foreshock.report.incidents import DAMAGE, IncidentSummary
from foreshock.report.page import render_page, require_packages, write_page
from foreshock.report.summary import RunSummary, summarise

if TYPE_CHECKING:
    from foreshock.report.charts import Chart

_MAX_DEMO_BYTES: Final = 64 << 20
_MAX_DEMO_CURVES: Final = 32
_MAX_VALUE: Final = float(np.finfo(np.float32).max)
_MAX_NEAR: Final = 20
"""Incidents that get charts of their own. Our choice: each costs about 50 kB."""

_AROUND_STEPS: Final = 40

HeldOut = dict[str, tuple[Ints, Floats]]


def write_report(run_dir: Path, out: Path, compare: Mapping[str, Path]) -> None:
    """Write the report of a run to a file, which appears whole or not at all.

    Args:
        run_dir: the run; it is only read, and may still be going on.
        out: the file to write.
        compare: other run directories whose curves are drawn too, by the name to show.

    Raises:
        MissingExtra: Bokeh or Jinja is not installed.
        RunDirError, JournalError: a directory is no run, or its decisions are damaged.
        ForeshockError: `out` cannot be written.
    """
    write_page(render_report(run_dir, compare), out, "--out")


def render_report(run_dir: Path, compare: Mapping[str, Path]) -> str:
    """The page itself; see `write_report`."""
    require_packages("--text")
    from foreshock.report import charts as drawing  # noqa: PLC0415

    disk = RealDisk()
    view = Journal.read(disk, run_dir)
    lineage = read_lineage(view)
    summary = summarise(view, lineage)
    others = {
        clean_text(name): read_lineage(Journal.read(disk, path)) for name, path in compare.items()
    }
    held_out, notes = read_held_out(run_dir / "demo.json")
    charts = _charts(summary, lineage, others)
    near = {
        place: _near(f"near-{place}", incident, lineage, summary.step)
        for place, incident in enumerate(summary.incidents[:_MAX_NEAR])
    }
    demo = [drawing.held_out_chart("held-out", held_out)] if held_out else []
    library, script, elements = drawing.embed(charts, demo, *near.values())
    return render_page(
        "page.html.jinja",
        run=summary,
        took=_took(summary),
        first=charts[:1],
        demo=demo,
        charts=charts[1:],
        near=near,
        elements=elements,
        library=library,
        script=script,
        notes=[*summary.notes, *notes],
        settings=json.dumps(summary.settings, indent=2),
    )


def _charts(summary: RunSummary, lineage: Lineage, others: Mapping[str, Lineage]) -> "list[Chart]":
    from foreshock.report.charts import run_chart, step_range  # noqa: PLC0415

    lineages = [lineage, *others.values()]
    ends = [part.last_step for one in lineages for part in one.parts if part.num_rows]
    begins = [int(part.block.steps[0]) for one in lineages for part in one.parts if part.num_rows]
    if not ends:
        return []
    x_range = step_range(min(begins), max(ends))
    bands = [_band(incident, summary.step) for incident in summary.incidents]
    movers = [incident.first_mover for incident in summary.incidents]
    charts: list[Chart] = []
    for place, series in enumerate(chosen_series(lineages, movers)):
        curve = lineage.curve(series)
        beside = {name: other.curve(series) for name, other in others.items()}
        known = {name: one for name, one in beside.items() if one is not None}
        if curve is None:
            continue
        charts.append(
            run_chart(f"chart-{place}", curve, known, bands, x_range, height=230 if charts else 280)
        )
    return charts


def _near(key: str, incident: IncidentSummary, lineage: Lineage, last_step: int) -> "list[Chart]":
    """Close-ups of an incident: what moved first, and the loss."""
    from foreshock.report.charts import Rule, run_chart, step_range  # noqa: PLC0415

    band = _band(incident, last_step)
    back = {plan.back_to[1] for plan in incident.plans if plan.back_to is not None}
    around = max(_AROUND_STEPS, band.end - band.start)
    near = [step for step in back if step > band.start - 4 * around]
    first = max(0, min([band.start - around, *(step - 10 for step in near)]))
    last = max(band.start, min(band.end + around, last_step))
    charts: list[Chart] = []
    x_range = step_range(first, last)
    for place, series in enumerate(dict.fromkeys((incident.first_mover, series_name(LOSS.name)))):
        curve = lineage.curve(series, first=first, last=last)
        if curve is not None:
            name = f"{key}-{place}"
            rules = [Rule(step, "gone back to") for step in sorted(near)]
            charts.append(run_chart(name, curve, {}, [band], x_range, height=190, rules=rules))
    return charts


def _band(incident: IncidentSummary, last_step: int) -> Any:
    from foreshock.report.charts import Band  # noqa: PLC0415

    end = incident.closed_step if incident.closed_step is not None else last_step
    start = incident.onset_step
    return Band(incident.number, start, max(start, end), incident.outcome)


def read_held_out(path: Path) -> tuple[HeldOut, list[str]]:
    """The held-out curves that `foreshock demo` left, and what is wrong with them."""
    try:
        if path.stat().st_size > _MAX_DEMO_BYTES:
            return {}, ["demo.json is too large to be shown"]
        curves: dict[str, Sequence[Any]] = json.loads(RealDisk().read(path))["curves"]
        if len(curves) > _MAX_DEMO_CURVES:
            return {}, [f"demo.json holds {len(curves):,} curves, too many to be shown"]
        found: HeldOut = {}
        for name, points in curves.items():
            steps = np.array([whole(step) for step, _ in points], np.int64)
            values = np.array([_value(value) for _, value in points], np.float64)
            if len(steps):
                found[clean_text(name)] = (steps, values)
        return found, []
    except FileNotFoundError:
        return {}, []
    except (*DAMAGE, OSError, RecursionError) as error:
        return {}, [f"demo.json cannot be shown: {type(error).__name__}: {error!s:.120}"]


def _value(value: object) -> float:
    number = math.nan if value is None else from_json_number(value)
    return math.copysign(math.inf, number) if abs(number) > _MAX_VALUE else number


def _took(summary: RunSummary) -> str:
    if summary.started is None or summary.last_seen is None:
        return ""
    return words.duration(summary.last_seen - summary.started)
