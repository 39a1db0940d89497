"""Scores an inspection, and the peers' rules, against the labels of a corpus of real logs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.corpus_labels import FEW_READINGS, QUIET, Label
from benchmarks.synthetic_rules import PeerRule, Rule, all_rules
from foreshock.core.errors import ForeshockError
from foreshock.core.log import Log, LogSeries
from foreshock.inspection.finding import Episode, Inspection
from foreshock.inspection.inspect import inspect_log
from foreshock.logs import read_log

Span = tuple[float, float]
_TOLERANCE_READINGS = 5
"""How far from a labelled span an alarm may lie and still be of it, in readings of the log."""

_PEAK_REACH = 100


@dataclass(kw_only=True)
class Tally:
    """Counts of one rule over a corpus."""

    logs: int = 0
    right: int = 0
    events: int = 0
    found: int = 0
    alarms: int = 0
    true_alarms: int = 0
    quiet_readings: int = 0
    quiet_alarms: int = 0
    leads: list[float] = field(default_factory=list[float])

    def figures(self) -> dict[str, Any]:
        """Shares and rates; None where nothing was counted."""
        return {
            "class_accuracy": _share(self.right, self.logs),
            "event_precision": _share(self.true_alarms, self.alarms),
            "event_recall": _share(self.found, self.events),
            "false_alarms_per_10k_steps": _share(1e4 * self.quiet_alarms, self.quiet_readings),
            "median_lead_steps": float(np.median(self.leads)) if self.leads else None,
        }


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One log with what was found in it."""

    label: Label
    log: Log | None
    inspection: Inspection | None
    refusal: str
    right: bool


def read_corpus(labels: Sequence[Label], progress: Callable[[], None]) -> list[Scored]:
    """Read and inspect every log; one that cannot be read keeps its reason."""
    scored: list[Scored] = []
    for label in labels:
        log, inspection, refusal = None, None, ""
        try:
            log = read_log(label.file)
            inspection = inspect_log(log)
        except ForeshockError as error:
            refusal = str(error)
        right = inspection is not None and str(inspection.run_class) in label.right
        if inspection is not None and label.is_quiet and not right:
            few = (label.num_steps or 0) <= FEW_READINGS
            right = few and str(inspection.run_class) == "not_judgeable"
        scored.append(
            Scored(label=label, log=log, inspection=inspection, refusal=refusal, right=right)
        )
        progress()
    return scored


def score_ours(scored: Sequence[Scored]) -> dict[str, Any]:
    """The inspection's own figures: an alarm is an episode that matters."""
    tally = Tally()
    quiet = 0
    for one in scored:
        if not one.label.is_scored:
            continue
        tally.logs += 1
        tally.right += one.right
        if one.log is None or one.inspection is None:
            tally.events += len(one.label.events)
            continue
        quiet += (str(one.inspection.run_class) in QUIET) == one.label.is_quiet
        episodes = [
            episode
            for finding in one.inspection.findings
            for episode in finding.episodes
            if episode.matters
        ]
        _count(tally, one, [_span(episode) for episode in episodes])
        tally.leads += [float(lead) for lead in map(_lead, episodes) if lead is not None]
    return {**tally.figures(), "trouble_accuracy": _share(quiet, tally.logs)}


def score_rules(scored: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """The same figures of each causal rule at its defaults: the peers' and our own family,
    whose alarms are counted like theirs, without the look from both sides.

    A rule names no class: right means that it alarmed in a log with trouble, and did not in
    a quiet one. A row of flagged readings is one alarm.
    """
    found: dict[str, dict[str, Any]] = {"peers": {}, "live": {}}
    for name, rule in all_rules().items():
        found["live" if rule.is_ours else "peers"][name] = _score_rule(rule, scored)
    return found


def _score_rule(rule: Rule, scored: Sequence[Scored]) -> dict[str, Any]:
    tally = Tally()
    for one in scored:
        if not one.label.is_scored:
            continue
        spans, leads = _flagged(rule, one.log) if one.log is not None else ([], [])
        tally.logs += 1
        tally.right += bool(spans) != one.label.is_quiet
        _count(tally, one, spans)
        tally.leads += leads
    return tally.figures()


def _count(tally: Tally, one: Scored, spans: Sequence[Span]) -> None:
    readings, interval = _extent(one.log)
    if one.label.is_quiet:
        tally.quiet_readings += readings
        tally.quiet_alarms += len(spans)
    slack = _TOLERANCE_READINGS * interval
    wide = [(first - slack, last + slack) for first, last in one.label.events]
    tally.alarms += len(spans)
    tally.true_alarms += sum(any(_meet(span, event) for event in wide) for span in spans)
    tally.events += len(wide)
    tally.found += sum(any(_meet(span, event) for span in spans) for event in wide)


def _flagged(rule: Rule, log: Log) -> tuple[list[Span], list[float]]:
    spans: list[Span] = []
    leads: list[float] = []
    for run in log.runs:
        loss, norm = run.series.get("loss"), run.series.get("grad_norm")
        lead = loss or norm
        wanted = rule.peer.signals if isinstance(rule, PeerRule) else ("loss", "grad_norm")
        if lead is None or not any(name in run.series for name in wanted):
            continue
        prepared = rule.prepare(_on(lead, loss)[:, None], _on(lead, norm)[:, None])
        flags = rule.decide(prepared)[:, 0]
        steps = lead.steps
        edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            spans.append((float(steps[start]), float(steps[stop - 1])))
            if loss is not None:
                ahead = lead.values[start : start + _PEAK_REACH]
                if np.isfinite(ahead).any() and start and np.nanmax(ahead) > lead.values[start - 1]:
                    leads.append(float(steps[start + int(np.nanargmax(ahead))] - steps[start]))
    return spans, leads


def _on(lead: LogSeries, series: LogSeries | None) -> "np.ndarray[Any, Any]":
    """A series at the times of another, NaN where it has none; calm where it is not logged."""
    if series is lead:
        return lead.values
    values = np.full(len(lead), np.nan)
    if series is None:
        return np.ones(len(lead))
    _, mine, theirs = np.intersect1d(lead.clock, series.clock, return_indices=True)
    values[mine] = series.values[theirs]
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), 0))
    gaps = np.ones(len(lead), np.bool_)
    gaps[mine] = False
    return np.where(gaps, values[last], values)


def _span(episode: Episode) -> Span:
    end = episode.end_step if episode.end_step is not None else episode.peak_step
    return float(episode.onset_step), float(max(end, episode.onset_step))


def _lead(episode: Episode) -> int | None:
    """Steps from the first movement to the loss's peak, where another signal moved first."""
    return None if episode.first_mover == "loss" else episode.lead_to_loss_peak_steps


def _extent(log: Log | None) -> tuple[int, int]:
    """Readings of a log, and the steps from one to the next."""
    if log is None:
        return 0, 1
    readings, interval = 0, 1
    for run in log.runs:
        series = run.series.get("loss") or max(run.series.values(), key=len, default=None)
        if series is None:
            continue
        readings += len(series)
        gaps = np.diff(series.steps)
        gaps = gaps[gaps > 0]
        interval = max(interval, int(np.median(gaps)) if len(gaps) else 1)
    return readings, interval


def _meet(span: Span, event: Span) -> bool:
    return span[0] <= event[1] and event[0] <= span[1]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
