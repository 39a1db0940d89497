"""Inspects a log: its runs made ready, alarmed, joined into episodes, classified."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from foreshock.core.detector import Alarm
from foreshock.core.log import Log, LoggedRun
from foreshock.inspection import gradient, nonfinite, restarts, stillness
from foreshock.inspection.advice import advise
from foreshock.inspection.alarms import on_steps
from foreshock.inspection.attempt import SHOWN_OUTLIERS, Judged, judge_attempt
from foreshock.inspection.causes import rank_causes
from foreshock.inspection.evaluation import broken_evaluation
from foreshock.inspection.finding import (
    Episode,
    EpisodeKind,
    Inspection,
    Movement,
    RunClass,
    RunFinding,
)
from foreshock.inspection.lineage import lineages
from foreshock.inspection.scale import find_collapse
from foreshock.inspection.statement import verdict_of
from foreshock.inspection.trace import Ready, Trace, make_ready

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
    draft = _Draft(run=run, ready=ready)
    for lineage in lineages(ready.traces):
        draft.take(judge_attempt(lineage, is_rl=ready.is_rl, progress=progress))
    draft.judge_whole()
    return draft.finding()


@dataclass(kw_only=True)
class _Draft:
    """A finding in the making."""

    run: LoggedRun
    ready: Ready
    alarms: dict[str, list[Alarm]] = field(default_factory=dict[str, list[Alarm]])
    episodes: list[Episode] = field(default_factory=list[Episode])
    outliers: list[Episode] = field(default_factory=list[Episode])
    num_outliers: int = 0
    nan_from_step: int | None = None
    last: Judged | None = None

    def take(self, judged: Judged) -> None:
        """Take in what one attempt came to."""
        self.last = judged
        self.episodes += judged.episodes
        self.outliers += judged.outliers[: SHOWN_OUTLIERS - len(self.outliers)]
        self.num_outliers += judged.num_outliers
        for name, found in judged.alarms.items():
            trace = judged.traces[name]
            self.alarms.setdefault(name, []).extend(on_steps(alarm, trace) for alarm in found)

    def judge_whole(self) -> None:
        """Judge what is a matter of the whole run."""
        loss = self.ready.loss
        self._judge_scale()
        for episode in nonfinite.find_nan(self.run, self.ready):
            if episode.kind is EpisodeKind.NAN and self.nan_from_step is None:
                self.nan_from_step = episode.onset_step
            if episode.kind is EpisodeKind.BENIGN_OUTLIER:
                self.num_outliers += 1
                self.outliers.append(episode)
            else:
                self.episodes.append(nonfinite.with_precursors(episode, self.episodes))
        if loss is not None:
            self._judge_stillness(loss)
            self.episodes += restarts.find_discontinuities(loss)
        broken = broken_evaluation(self.ready)
        if broken is not None:
            self.episodes.append(broken)

    def _judge_scale(self) -> None:
        rose = any(
            episode.end_step is None and any(m.signal == "loss" for m in episode.movements)
            for episode in (*self.episodes, *self.outliers)
        )
        scale = self.ready.traces.get("loss_scale")
        found = find_collapse(self.run, scale, loss_rose=rose)
        if found is None:
            return
        raised = [a for a in self.alarms.get("loss_scale", ()) if a.step >= found.start_step]
        movement = Movement(
            signal="loss_scale",
            onset_step=found.start_step,
            peak_step=found.end_step,
            end_step=None,
            peak_value=found.after,
            baseline=found.before,
            alarm_step=raised[0].step if raised else None,
            detectors=tuple(sorted({alarm.detector for alarm in raised})),
        )
        moved = [
            m
            for episode in self.episodes
            for m in episode.movements
            if m.signal == "loss" and m.onset_step >= found.start_step
        ]
        first = min(moved, key=lambda m: m.onset_step, default=None)
        self.episodes.append(
            Episode(
                kind=EpisodeKind.LOSS_SCALE_COLLAPSE,
                onset_step=found.start_step,
                peak_step=found.end_step,
                end_step=None,
                first_mover="loss_scale",
                lead_to_loss_move_steps=first.onset_step - found.start_step if first else None,
                lead_to_loss_peak_steps=first.peak_step - found.start_step if first else None,
                causal_onset_step=raised[0].onset_step if raised else None,
                alarm_step=movement.alarm_step,
                movements=(movement, first) if first else (movement,),
                statement=found.reason,
            )
        )

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

    def finding(self) -> RunFinding:
        """The class, the verdict and everything behind them."""
        run_class = self._class()
        self.episodes.sort(key=lambda one: one.onset_step)
        shown = tuple(self.episodes[:_SHOWN_EPISODES] + self.outliers[:SHOWN_OUTLIERS])
        finding = RunFinding(
            run=self.run,
            run_class=run_class,
            verdict="",
            episodes=shown,
            num_outliers=self.num_outliers,
            nan_from_step=self.nan_from_step,
            warnings=(*self.ready.warnings, *self._limits()),
            alarms={name: tuple(found) for name, found in self.alarms.items()},
        )
        diagnosis = None
        if self.last is not None:
            diagnosis = rank_causes(finding, self.last.traces, self.last.alarms)
        finding = replace(finding, verdict=verdict_of(finding, self.ready), diagnosis=diagnosis)
        return replace(finding, advice=advise(finding))

    def _class(self) -> RunClass:
        classes = [_CLASS_OF[one.kind] for one in self.episodes if one.kind in _CLASS_OF]
        if classes:
            return self._first_cause(min(classes, key=lambda one: one.severity))
        if self.num_outliers:
            return RunClass.BENIGN_OUTLIERS
        lead = self.ready.loss or self.ready.grad_norm or self.ready.traces.get("loss_scale")
        if lead is None or len(lead) <= _FEW_READINGS:
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
