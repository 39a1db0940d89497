"""Inspects a log: its runs made ready, alarmed, joined into episodes, classified."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from foreshock.core.detector import Alarm
from foreshock.core.log import Ints, Log, LoggedRun
from foreshock.inspection import gradient, nonfinite, restarts, stillness
from foreshock.inspection import loss as losses
from foreshock.inspection.advice import advise
from foreshock.inspection.alarms import default_detectors, on_steps, raise_alarms
from foreshock.inspection.causes import rank_causes
from foreshock.inspection.evaluation import broken_evaluation
from foreshock.inspection.excursion import Excursion, Terrain
from foreshock.inspection.finding import (
    Episode,
    EpisodeKind,
    Inspection,
    RunClass,
    RunFinding,
)
from foreshock.inspection.joining import Moved, far_norms, join, precursor
from foreshock.inspection.scale import find_collapse
from foreshock.inspection.statement import state, verdict_of
from foreshock.inspection.trace import Ready, Trace, make_ready

_SHOWN_OUTLIERS = 20
_SHOWN_EPISODES = 200
_FEW_READINGS = 3
_SHORT_READINGS = 20

_CLASS_OF = {
    EpisodeKind.NAN: RunClass.NAN,
    EpisodeKind.LOSS_SCALE_COLLAPSE: RunClass.LOSS_SCALE_COLLAPSE,
    EpisodeKind.DIVERGENCE: RunClass.DIVERGENCE,
    EpisodeKind.GRAD_NORM_EXPLOSION: RunClass.GRAD_NORM_EXPLOSION,
    EpisodeKind.NON_RECOVERING_SPIKE: RunClass.SHIFT,
    EpisodeKind.RECOVERING_SPIKE: RunClass.RECOVERING_SPIKE,
    EpisodeKind.PLATEAU: RunClass.PLATEAU,
    EpisodeKind.RESTART_DISCONTINUITY: RunClass.RESTART_DISCONTINUITY,
    EpisodeKind.SHIFT: RunClass.SHIFT,
    EpisodeKind.EVAL_ONLY: RunClass.EVAL_ONLY_NAN,
}


def inspect_log(
    log: Log, *, progress: Callable[[int], None] = lambda num_readings: None
) -> Inspection:
    """Inspect every run of a log.

    Args:
        log: as it was read; it has at least one run.
        progress: told how many readings have been judged since the last call.
    """
    return Inspection(
        path=log.path,
        format=log.format,
        title=log.title,
        findings=tuple(inspect_run(run, progress=progress) for run in log.runs),
        notes=log.notes,
        facts=log.facts,
    )


def inspect_run(
    run: LoggedRun, *, progress: Callable[[int], None] = lambda num_readings: None
) -> RunFinding:
    """Inspect one run."""
    ready = make_ready(run)
    alarms = raise_alarms(ready.traces, default_detectors(), progress=progress)
    draft = _Draft(run=run, ready=ready, alarms=alarms)
    draft.judge()
    return draft.finding()


@dataclass(kw_only=True)
class _Draft:
    """A finding in the making."""

    run: LoggedRun
    ready: Ready
    alarms: dict[str, tuple[Alarm, ...]]
    episodes: list[Episode] = field(default_factory=list[Episode])
    outliers: list[Episode] = field(default_factory=list[Episode])
    num_outliers: int = 0
    nan_from_step: int | None = None
    _norm_terrain: Terrain | None = None

    def judge(self) -> None:
        loss, norm = self.ready.loss, self.ready.grad_norm
        seeds = np.zeros(0, np.int64)
        norm_terrain = None
        if norm is not None:
            norm_terrain, seeds = gradient.terrain_of(norm, self.alarms.get("grad_norm", ()))
        self._norm_terrain = norm_terrain
        if loss is not None:
            self._judge_loss(loss, norm, seeds)
        self._judge_norm(seeds)
        self._judge_scale()
        self._judge_nonfinite()
        if loss is not None:
            self._judge_stillness(loss)
            self._judge_restarts(loss)
        self._judge_evaluation()

    def _judge_loss(self, loss: Trace, norm: Trace | None, seeds: Ints) -> None:
        moved = far_norms(loss, norm, seeds)
        found = losses.loss_excursions(self.ready, loss, self.alarms.get("loss", ()), moved)
        rise = losses.final_rise(self.ready, loss)
        for one in found:
            if one.kind is EpisodeKind.BENIGN_OUTLIER and self.num_outliers >= _SHOWN_OUTLIERS:
                self.num_outliers += 1
                continue
            kind, excursion = one.kind, one.excursion
            if kind is EpisodeKind.DIVERGENCE and rise is None and len(loss) >= losses.SHORT:
                kind = EpisodeKind.NON_RECOVERING_SPIKE
            self._add(kind, loss, excursion)
        diverged = any(one.kind is EpisodeKind.DIVERGENCE for one in self.episodes)
        if rise is not None and not diverged:
            excursion = Excursion(
                start=rise.start,
                peak=rise.peak,
                end=None,
                range=rise.range,
                height=(float(loss.values[rise.peak]) - rise.best) / rise.range.spread,
                width=len(loss) - rise.start,
            )
            self._add(EpisodeKind.DIVERGENCE, loss, excursion)

    def _add(self, kind: EpisodeKind, trace: Trace, excursion: Excursion) -> None:
        main = Moved(trace=trace, excursion=excursion)
        others: list[Moved] = []
        terrain = self._norm_terrain
        if trace.signal == "loss" and terrain is not None and kind is not EpisodeKind.PLATEAU:
            clock, peak = int(trace.clock[excursion.start]), int(trace.clock[excursion.peak])
            short = len(terrain.trace) < losses.SHORT
            found = precursor(terrain, clock, peak, short=short)
            if found is not None:
                others.append(Moved(trace=terrain.trace, excursion=found))
        episode = join(kind, main, others, self.alarms)
        self._keep(replace(episode, statement=state(episode, trace)))

    def _keep(self, episode: Episode) -> None:
        if episode.kind is EpisodeKind.BENIGN_OUTLIER:
            self.num_outliers += 1
            self.outliers.append(episode)
        else:
            self.episodes.append(episode)

    def _judge_norm(self, seeds: Ints) -> None:
        terrain = self._norm_terrain
        if terrain is None:
            return
        taken = [
            (m.onset_step, m.end_step if m.end_step is not None else 1 << 62)
            for episode in (*self.episodes, *self.outliers)
            for m in episode.movements
            if m.signal == "grad_norm"
        ]
        for one in gradient.norm_excursions(terrain, seeds):
            step = int(terrain.trace.steps[one.excursion.start])
            if any(low <= step < max(high, low + 1) for low, high in taken):
                continue
            exploded = one.exploded and self._loss_calm_at(terrain.trace, one.excursion)
            kind = EpisodeKind.GRAD_NORM_EXPLOSION if exploded else EpisodeKind.BENIGN_OUTLIER
            if kind is EpisodeKind.BENIGN_OUTLIER and self.num_outliers >= _SHOWN_OUTLIERS:
                self.num_outliers += 1
                continue
            self._add(kind, terrain.trace, one.excursion)

    def _loss_calm_at(self, norm: Trace, excursion: Excursion) -> bool:
        """Whether no episode of the loss explains the norm's excursion."""
        first = int(norm.steps[excursion.start])
        return not any(
            episode.matters
            and episode.movements[0].signal == "loss"
            and episode.onset_step <= first
            and (episode.end_step is None or first <= episode.end_step)
            for episode in self.episodes
        )

    def _judge_scale(self) -> None:
        rose = any(
            episode.end_step is None and episode.movements[0].signal == "loss"
            for episode in self.episodes
        )
        scale = self.ready.traces.get("loss_scale")
        found = find_collapse(self.run, scale, loss_rose=rose)
        if found is None:
            return
        loss = self.ready.loss
        moved = [
            m.onset_step
            for episode in self.episodes
            for m in episode.movements
            if m.signal == "loss" and m.onset_step >= found.start_step
        ]
        lead = min(moved) - found.start_step if moved and loss is not None else None
        self.episodes.append(
            Episode(
                kind=EpisodeKind.LOSS_SCALE_COLLAPSE,
                onset_step=found.start_step,
                peak_step=found.end_step,
                end_step=None,
                first_mover="loss_scale",
                lead_to_loss_move_steps=lead,
                lead_to_loss_peak_steps=None,
                statement=found.reason,
            )
        )

    def _judge_nonfinite(self) -> None:
        for episode in nonfinite.find_nan(self.run, self.ready):
            if episode.kind is EpisodeKind.NAN and self.nan_from_step is None:
                self.nan_from_step = episode.onset_step
            self._keep(self._led(episode))

    def _led(self, episode: Episode) -> Episode:
        """A NaN that an open episode of the loss or the norm led to began where that did."""
        return nonfinite.with_precursors(episode, self.episodes)

    def _judge_stillness(self, loss: Trace) -> None:
        found = stillness.find_stillness(self.ready, loss)
        if found is None:
            return
        step = int(loss.steps[found.start])
        self.episodes.append(
            Episode(
                kind=EpisodeKind.PLATEAU,
                onset_step=step,
                peak_step=step,
                end_step=None,
                first_mover="loss",
                lead_to_loss_move_steps=0,
                lead_to_loss_peak_steps=0,
                statement=found.reason,
            )
        )

    def _judge_restarts(self, loss: Trace) -> None:
        self.episodes += restarts.find_discontinuities(loss)

    def _judge_evaluation(self) -> None:
        found = broken_evaluation(self.ready)
        if found is not None:
            self.episodes.append(found)

    def finding(self) -> RunFinding:
        """The class, the verdict and everything behind them."""
        run_class = self._class()
        self.episodes.sort(key=lambda one: one.onset_step)
        shown = tuple(self.episodes[:_SHOWN_EPISODES] + self.outliers[:_SHOWN_OUTLIERS])
        traces = self.ready.traces
        finding = RunFinding(
            run=self.run,
            run_class=run_class,
            verdict="",
            episodes=shown,
            num_outliers=self.num_outliers,
            nan_from_step=self.nan_from_step,
            warnings=(*self.ready.warnings, *self._limits()),
            alarms={
                name: tuple(on_steps(alarm, traces[name]) for alarm in found)
                for name, found in self.alarms.items()
            },
        )
        diagnosis = rank_causes(finding, self.ready, self.alarms)
        finding = replace(finding, verdict=verdict_of(finding, self.ready), diagnosis=diagnosis)
        return replace(finding, advice=advise(finding))

    def _class(self) -> RunClass:
        classes = [_CLASS_OF[one.kind] for one in self.episodes if one.kind in _CLASS_OF]
        if classes:
            return self._first_cause(min(classes, key=lambda one: one.severity))
        loss = self.ready.loss or self.ready.grad_norm
        if self.num_outliers:
            return RunClass.BENIGN_OUTLIERS
        if loss is None or len(loss) <= _FEW_READINGS:
            return RunClass.NOT_JUDGEABLE
        return RunClass.HEALTHY

    def _first_cause(self, worst: RunClass) -> RunClass:
        """A NaN that came of a loss scale on its way to zero is that scale's collapse, and one
        whose update was skipped is the gradient's."""
        kinds = {one.kind: one for one in reversed(self.episodes)}
        nan, collapse = kinds.get(EpisodeKind.NAN), kinds.get(EpisodeKind.LOSS_SCALE_COLLAPSE)
        if worst is not RunClass.NAN or nan is None:
            return worst
        if collapse is not None and collapse.onset_step <= nan.onset_step:
            return RunClass.LOSS_SCALE_COLLAPSE
        if gradient.skipped_for_nan(self.run) is not None and not self._loss_was_seen():
            return RunClass.GRAD_NORM_EXPLOSION
        return worst

    def _loss_was_seen(self) -> bool:
        """Whether any finite loss is logged, so that a missing one says something."""
        return self.ready.loss is not None and bool(self.ready.loss.finite.any())

    def _limits(self) -> list[str]:
        found: list[str] = []
        loss = self.ready.loss
        if loss is None:
            found.append("no training loss was found: name its column with --map loss=COLUMN")
        elif len(loss) < _SHORT_READINGS:
            found.append(
                f"only {len(loss)} readings of the loss: trends cannot be judged, and live rules "
                "would still be warming up"
            )
        if not self.run.has_steps:
            found.append("the log names no steps: the numbers of its rows stand in for them")
        if loss is not None and loss.interval_steps >= 10 and self.run.has_steps:
            found.append(
                f"the loss is logged every {loss.interval_steps} steps: what is shorter is unseen"
            )
        return found
