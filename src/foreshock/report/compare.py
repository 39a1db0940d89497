"""Many runs side by side: which broke where, and whether that was chance, data or recipe."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from foreshock.core.log import LoggedRun
from foreshock.inspection.finding import EpisodeKind, Inspection, RunClass, RunFinding
from foreshock.report import episode_words
from foreshock.report.clean import clean_text
from foreshock.report.compare_result import ComparedRun, Comparison, RateGroup
from foreshock.report.compare_words import conclusions, wilson
from foreshock.report.together import Extent, Place, together

_SPIKES: Final = episode_words.SEVERE | {EpisodeKind.RECOVERING_SPIKE}
"""Kinds that begin at a step of their own; a plateau or a restart does not."""

_LEVEL_SHARE: Final = 0.02
_LEVEL_VALUES: Final = 100
"""A level of the loss is the median of 2 % of its values, at most 100. Our choice: at the
noise of a language model's loss that is good to about a tenth of its spread."""

_LR_FACTS: Final = ("peak_lr", "max_lr", "lr", "learning_rate")


def compare(inspections: Sequence[Inspection]) -> Comparison:
    """Put the runs of some logs side by side."""
    findings = [(one, finding) for one in inspections for finding in one.findings]
    names = _names(findings)
    rows = [_row(name, *pair) for name, pair in zip(names, findings, strict=True)]
    judged = [row for row in rows if row.run_class is not RunClass.NOT_JUDGEABLE]
    troubled = [row for row in judged if row.run_class.is_trouble]
    places = [
        Place(run=place, step=episode.onset_step)
        for place, (_, finding) in enumerate(findings)
        for episode in finding.episodes
        if episode.kind in _SPIKES
    ]
    met = together(places, [_extent(finding) for _, finding in findings], names)
    by_lr = _by_lr(judged)
    finals = [row.final_loss for row in judged if math.isfinite(row.final_loss)]
    rates = [row.outliers_per_10k for row in judged if math.isfinite(row.outliers_per_10k)]
    result = Comparison(
        runs=tuple(sorted(rows, key=lambda row: (row.run_class.severity, row.name))),
        num_judged=len(judged),
        num_troubled=len(troubled),
        interval=wilson(len(troubled), len(judged)),
        median_outliers_per_10k=float(np.median(rates)) if rates else math.nan,
        final_spread=max(finals) - min(finals) if len(finals) > 1 else math.nan,
        together=met,
        by_lr=by_lr,
        safe_lr=_safe(by_lr),
        conclusions=(),
    )
    return replace(result, conclusions=conclusions(result))


def _names(pairs: Sequence[tuple[Inspection, RunFinding]]) -> list[str]:
    short = episode_words.short_paths([clean_text(one.path) for one, _ in pairs])
    return [
        name if len(one.findings) == 1 else f"{name} #{finding.run.number}"
        for name, (one, finding) in zip(short, pairs, strict=True)
    ]


def _row(name: str, one: Inspection, finding: RunFinding) -> ComparedRun:
    spikes = [episode for episode in finding.episodes if episode.kind in _SPIKES]
    worst = next(iter(episode_words.ranked(spikes)), None)
    final, best, num_values = _levels(finding)
    enough = finding.run_class is not RunClass.NOT_JUDGEABLE and num_values
    return ComparedRun(
        name=name,
        path=clean_text(one.path),
        number=finding.run.number,
        run_class=finding.run_class,
        num_spikes=len(spikes),
        onset_step=worst.onset_step if worst else None,
        first_mover=clean_text(worst.first_mover) if worst else "",
        last_step=finding.span[1] if finding.span else None,
        final_loss=final,
        best_loss=best,
        outliers_per_10k=finding.num_outliers * 10_000 / num_values if enough else math.nan,
        lr=_lr(finding.run, one.facts),
    )


def _levels(finding: RunFinding) -> tuple[float, float, int]:
    """The last level of the loss, its least, and how many values it has."""
    series = finding.run.series.get("loss")
    if series is None or not len(series):
        return math.nan, math.nan, 0
    values = series.values
    size = max(1, min(_LEVEL_VALUES, round(_LEVEL_SHARE * len(values))))
    blocks = [values[max(0, end - size) : end] for end in range(len(values), 0, -size)]
    levels = [_level(block) for block in blocks]
    known = [level for level in levels if math.isfinite(level)]
    final = math.nan if finding.nan_from_step is not None else levels[0]
    return final, min(known, default=math.nan), len(values)


def _level(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else math.nan


def _lr(run: LoggedRun, facts: Mapping[str, str]) -> float:
    """The highest rate that was logged; else what the log says of it."""
    series = run.series.get("lr")
    if series is not None:
        known = series.values[np.isfinite(series.values) & (series.values > 0)]
        if len(known):
            return float(known.max())
    for name in _LR_FACTS:
        try:
            told = float(facts[name])
        except (KeyError, ValueError):
            continue
        if math.isfinite(told) and told > 0:
            return told
    return math.nan


def _extent(finding: RunFinding) -> Extent | None:
    if finding.span is None:
        return None
    series = finding.run.series.get("loss") or next(iter(finding.run.series.values()))
    gaps = np.diff(np.unique(series.steps))
    return Extent(*finding.span, spacing=int(np.median(gaps)) if len(gaps) else 1)


def _by_lr(judged: Sequence[ComparedRun]) -> tuple[RateGroup, ...]:
    groups: dict[float, list[ComparedRun]] = {}
    for row in judged:
        if math.isfinite(row.lr):
            groups.setdefault(float(f"{row.lr:.3g}"), []).append(row)
    if len(groups) < 2:
        return ()
    found: list[RateGroup] = []
    for lr in sorted(groups):
        finals = [row.final_loss for row in groups[lr] if math.isfinite(row.final_loss)]
        found.append(
            RateGroup(
                lr=lr,
                num_runs=len(groups[lr]),
                num_troubled=sum(row.run_class.is_trouble for row in groups[lr]),
                final_loss=float(np.median(finals)) if finals else math.nan,
            )
        )
    return tuple(found)


def _safe(groups: Sequence[RateGroup]) -> float | None:
    safe: float | None = None
    for group in groups:
        if group.num_troubled:
            break
        safe = group.lr
    return safe
