"""Diagnoses as one HTML file: the page of `report`, a section a log."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foreshock.core.names import GRAD_NORM, LOSS, LR
from foreshock.inspection.finding import Episode, Inspection, RunClass, RunFinding
from foreshock.report import episode_words, words
from foreshock.report.clean import clean_text
from foreshock.report.compare_result import Comparison
from foreshock.report.curves import MAX_POINTS
from foreshock.report.log_curves import logged_curve, movement_of
from foreshock.report.page import render_page, require_packages, write_page

if TYPE_CHECKING:
    from foreshock.report.charts import Band, Chart, Point, Rule

_DRAWN: Final = (LOSS.name, GRAD_NORM.name, "loss_scale", LR.name)
"""What is drawn of every run, in this order, where it is logged; then what moved first."""

_MAX_BANDS: Final = 60
_MAX_RULES: Final = 6
_MAX_FINDINGS: Final = 24
"""Runs that get charts; of the others the words are there. Our choice: a page that opens."""

_MAX_RUNS_OF_A_LOG: Final = 6
_MAX_TOGETHER: Final = 10
_PAGE_POINTS: Final = 40 * MAX_POINTS
"""Points of all charts together: at 16 bytes each and half more in base64 about 4 MB."""

_LEAST_POINTS: Final = 300


class _Detail(NamedTuple):
    """How much of each run is drawn: a chart takes a tenth of a second and 30 kB."""

    max_points: int
    num_signals: int
    num_near: int


def _detail(num_drawn: int) -> _Detail:
    points = max(_LEAST_POINTS, min(MAX_POINTS, _PAGE_POINTS // max(1, 4 * num_drawn)))
    if num_drawn <= 3:
        return _Detail(points, 6, 4)
    return _Detail(points, 4, 1) if num_drawn <= 8 else _Detail(points, 2, 0)


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One run of a log, ready for the page."""

    finding: RunFinding
    episodes: tuple[Episode, ...]
    charts: "tuple[Chart, ...]"
    near: "tuple[tuple[Episode, tuple[Chart, ...]], ...]"


def write_diagnosis(
    inspections: Sequence[Inspection],
    out: Path,
    comparison: Comparison | None = None,
    errors: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the page to a file, which appears whole or not at all.

    Raises:
        MissingExtra: Bokeh or Jinja is not installed.
        ForeshockError: `out` cannot be written.
    """
    write_page(render_diagnosis(inspections, comparison, errors), out, "--html")


def render_diagnosis(
    inspections: Sequence[Inspection],
    comparison: Comparison | None = None,
    errors: Sequence[tuple[str, str]] = (),
) -> str:
    """The page itself.

    Args:
        inspections: at least one.
        comparison: of their runs, if it was asked for.
        errors: logs that could not be read, each with a sentence.
    """
    require_packages("the text or --json")
    from foreshock.report.charts import embed  # noqa: PLC0415

    ranked = sorted(inspections, key=lambda one: one.run_class.severity)
    shown = [_shown_findings(one) for one in ranked]
    num_drawn = min(sum(map(len, shown)), _MAX_FINDINGS)
    detail = _detail(num_drawn)
    logs: list[SimpleNamespace] = []
    groups: list[Sequence[Chart]] = []
    left = _MAX_FINDINGS
    for one, findings in zip(ranked, shown, strict=True):
        parts: list[_Part] = []
        for finding in findings:
            key = f"log-{len(logs)}-{len(parts)}"
            parts.append(_part(key, finding, detail if left > 0 else None))
            left -= 1
            groups += [parts[-1].charts, *(near for _, near in parts[-1].near)]
        rest = len(one.findings) - len(parts)
        logs.append(SimpleNamespace(inspection=one, parts=parts, rest=rest))
    together = _together(ranked, detail.max_points) if comparison is not None else None
    if together is not None:
        groups.append([together])
    library, script, elements = embed(*groups)
    names = episode_words.short_paths([clean_text(one.path) for one in ranked])
    return render_page(
        "diagnosis.html.jinja",
        clean=True,
        logs=logs,
        names=names,
        headline=_headline(ranked, errors),
        worst=ranked[0].run_class,
        comparison=comparison,
        together=together,
        errors=errors,
        tone=tone,
        tell=episode_words,
        undrawn=max(0, -left),
        library=library,
        script=script,
        elements=elements,
    )


def tone(run_class: RunClass) -> str:
    """The page's class for a class of run: how it is coloured."""
    if not run_class.is_trouble:
        return "unknown" if run_class is RunClass.NOT_JUDGEABLE else "calm"
    return "severe" if run_class.severity <= RunClass.GRAD_NORM_EXPLOSION.severity else "mild"


def _headline(ranked: Sequence[Inspection], errors: Sequence[tuple[str, str]]) -> str:
    if len(ranked) == 1 and not errors:
        return ranked[0].worst.verdict
    troubled = sum(one.run_class.is_trouble for one in ranked)
    told = f"{words.count(len(ranked), 'log')}, {troubled} with trouble"
    return f"{told}; {len(errors)} could not be read" if errors else told


def _shown_findings(one: Inspection) -> list[RunFinding]:
    ranked = sorted(
        one.findings, key=lambda finding: (finding.run_class.severity, -finding.run.num_values)
    )
    return ranked[:_MAX_RUNS_OF_A_LOG]


def _part(key: str, finding: RunFinding, detail: _Detail | None) -> _Part:
    episodes = tuple(episode_words.ranked(finding.episodes))
    charts: tuple[Chart, ...] = ()
    near: list[tuple[Episode, tuple[Chart, ...]]] = []
    if detail is not None and finding.span is not None:
        charts = _charts(key, finding, episodes, detail)
        points = max(detail.max_points // 2, _LEAST_POINTS)
        for place, episode in enumerate(episodes[: detail.num_near]):
            found = _near(f"{key}-near-{place}", finding, episode, place + 1, points)
            if found:
                near.append((episode, found))
    return _Part(finding=finding, episodes=episodes, charts=charts, near=tuple(near))


def _charts(
    key: str, finding: RunFinding, episodes: Sequence[Episode], detail: _Detail
) -> "tuple[Chart, ...]":
    from foreshock.report.charts import run_chart, step_range  # noqa: PLC0415

    assert finding.span is not None
    x_range = step_range(*finding.span)
    bands = [_band(place, one, finding) for place, one in enumerate(episodes[:_MAX_BANDS], 1)]
    movers = [one.first_mover for one in episodes]
    signals = [name for name in dict.fromkeys((*_DRAWN, *movers)) if finding.run.series.get(name)]
    if not signals:
        signals = [name for name, series in finding.run.series.items() if len(series)][:1]
    found: list[Chart] = []
    for place, signal in enumerate(signals[: detail.num_signals]):
        found.append(
            run_chart(
                f"{key}-{place}",
                logged_curve(finding.run.series[signal], detail.max_points),
                {},
                bands,
                x_range,
                height=210 if found else 270,
                rules=_rules(episodes[:_MAX_RULES]),
                points=_points(episodes[:_MAX_BANDS], signal),
                main="as logged",
                with_unit=False,
            )
        )
    return tuple(found)


def _near(
    key: str, finding: RunFinding, episode: Episode, number: int, max_points: int
) -> "tuple[Chart, ...]":
    """Close-ups of an episode: the loss, and what moved first."""
    from foreshock.report.charts import run_chart, step_range  # noqa: PLC0415

    assert finding.span is not None
    band = _band(number, episode, finding)
    first_step, last_step = finding.span
    around = max(2 * (episode.peak_step - band.start), (band.end - band.start) // 2, 20)
    last = min(band.end + around, last_step, episode.peak_step + 8 * around)
    first = max(band.start - around, first_step)
    if last <= first or last - first > 0.7 * (last_step - first_step):
        return ()
    found: list[Chart] = []
    x_range = step_range(first, last)
    for place, signal in enumerate(dict.fromkeys((LOSS.name, episode.first_mover))):
        series = finding.run.series.get(signal)
        if series is None or not ((series.steps >= first) & (series.steps <= last)).any():
            continue
        found.append(
            run_chart(
                f"{key}-{place}",
                logged_curve(series, max_points, first=first, last=last),
                {},
                [band],
                x_range,
                height=190,
                rules=_rules([episode]),
                points=_points([episode], signal),
                main="as logged",
                with_unit=False,
            )
        )
    return tuple(found)


def _band(number: int, episode: Episode, finding: RunFinding) -> "Band":
    from foreshock.report.charts import Band  # noqa: PLC0415

    assert finding.span is not None
    end = episode.end_step if episode.end_step is not None else finding.span[1]
    start = episode.onset_step
    return Band(
        number, start, max(start, end), "severe" if episode_words.severe(episode) else "mild"
    )


def _rules(episodes: Sequence[Episode]) -> "list[Rule]":
    from foreshock.report.charts import Rule  # noqa: PLC0415

    found: list[Rule] = []
    for one in episodes:
        found.append(Rule(one.onset_step, "onset (from both sides)", "dashed"))
        if one.alarm_step is not None:
            found.append(Rule(one.alarm_step, "first alarm (live)", "dotted"))
    return found


def _points(episodes: Sequence[Episode], signal: str) -> "list[Point]":
    from foreshock.report.charts import Point  # noqa: PLC0415

    moved = [one for episode in episodes if (one := movement_of(episode, signal)) is not None]
    return [Point(one.peak_step, one.peak_value) for one in moved]


def _together(ranked: Sequence[Inspection], max_points: int) -> "Chart | None":
    """The losses of the runs in one chart."""
    from foreshock.report.charts import MAIN, OTHERS, lines_chart  # noqa: PLC0415

    findings = [(one, finding) for one in ranked for finding in one.findings]
    names = episode_words.short_paths([clean_text(one.path) for one, _ in findings])
    curves: dict[str, Any] = {}
    for name, (one, finding) in zip(names, findings, strict=True):
        series = finding.run.series.get(LOSS.name)
        if series is None or not len(series) or len(curves) >= _MAX_TOGETHER:
            continue
        label = name if len(one.findings) == 1 else f"{name} #{finding.run.number}"
        curve = logged_curve(series, max(max_points // 2, _LEAST_POINTS))
        curves[label] = (curve.steps, curve.values)
    if len(curves) < 2:
        return None
    palette = (MAIN, *OTHERS)
    colours = [palette[place % len(palette)] for place in range(len(curves))]
    title = "loss of the runs"
    if len(findings) > len(curves):
        title += f", {len(curves)} of {len(findings)}"
    return lines_chart("together", curves, colours, title=title)
