"""Inspects a log: its runs made ready, alarmed, joined into episodes, classified."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from foreshock.core.cause import Diagnosis
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.log import Log, LoggedRun
from foreshock.inspection import gradient, nonfinite, restarts, stillness
from foreshock.inspection.advice import advise
from foreshock.inspection.alarms import between, of_kind, on_steps, raise_alarms
from foreshock.inspection.attempt import SHOWN_OUTLIERS, Judged, judge_attempt
from foreshock.inspection.causes import WEIGHED, rank_causes
from foreshock.inspection.evaluation import broken_evaluation
from foreshock.inspection.finding import (
    CLASS_OF,
    Episode,
    EpisodeKind,
    Inspection,
    Movement,
    RunClass,
    RunFinding,
    begins_at,
)
from foreshock.inspection.lineage import Return, era, lineage_of, lineages, returns
from foreshock.inspection.scale import find_collapse
from foreshock.inspection.statement import deciding, verdict_of
from foreshock.inspection.trace import Ready, Trace, counted, make_ready

_SHOWN_EPISODES = 200
_FEW_READINGS = 3
_SHORT_READINGS = 20
_JUDGED = ("loss", "grad_norm")
_NO_RUN = LoggedRun(number=1, has_steps=False, series={})

_LASTING_RISES = (EpisodeKind.DIVERGENCE, EpisodeKind.NON_RECOVERING_SPIKE)
"""What a loss that grows with the rewards would be called, too."""


def inspect_log(
    log: Log, *, progress: Callable[[int], None] = lambda num_readings: None
) -> Inspection:
    """Inspect every run of a log.

    Args:
        log: as it was read.
        progress: told how many readings have been judged since the last call.
    """
    return Inspection(
        path=log.path,
        format=log.format,
        title=log.title,
        findings=tuple(inspect_run(run, progress=progress) for run in log.runs or (_NO_RUN,)),
        notes=log.notes,
        facts=log.facts,
    )


def inspect_run(
    run: LoggedRun, *, progress: Callable[[int], None] = lambda num_readings: None
) -> RunFinding:
    """Inspect one run."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # 1e308 is legal
        ready = make_ready(run)
        went_back = returns(ready.raw)
        raised = raise_alarms(ready.raw, went_back=went_back, progress=progress)
        changed = {name: one for name, one in ready.traces.items() if one is not ready.raw[name]}
        alarms = {**raised, **dict.fromkeys(changed, ())}
        alarms.update(raise_alarms(changed, went_back=went_back))
        draft = _Draft(run=run, ready=ready, went_back=went_back, raised=raised)
        judged = {name: ready.traces[name] for name in _JUDGED if name in ready.traces}
        for lineage in lineages(judged, went_back):
            draft.take(judge_attempt(lineage, alarms, raised, is_rl=ready.is_rl))
        draft.judge_whole()
        return draft.finding()


@dataclass(kw_only=True)
class _Draft:
    """A finding in the making."""

    run: LoggedRun
    ready: Ready
    went_back: tuple[Return, ...]
    raised: Mapping[str, tuple[Alarm, ...]]
    episodes: list[Episode] = field(default_factory=list[Episode])
    outliers: list[Episode] = field(default_factory=list[Episode])
    num_outliers: int = 0
    nan_from_step: int | None = None

    def take(self, judged: Judged) -> None:
        """Take in what one attempt came to."""
        for episode in judged.episodes:
            if self.ready.reward_rose and episode.kind in _LASTING_RISES:
                self.num_outliers += 1
                self.outliers.append(replace(episode, kind=EpisodeKind.BENIGN_OUTLIER))
            else:
                self.episodes.append(episode)
        self.outliers += judged.outliers[: max(0, SHOWN_OUTLIERS - len(self.outliers))]
        self.num_outliers += judged.num_outliers

    def _era(self, episode: Episode) -> int:
        """The number of the attempt that an episode belongs to."""
        return era(self.went_back, episode.clock)

    def _when(self, episode: Episode) -> tuple[int, int]:
        """What orders episodes in time, over restarts too."""
        return self._era(episode), episode.onset_step

    def judge_whole(self) -> None:
        """Judge what is a matter of the whole run."""
        loss = self.ready.loss
        self._judge_scale()
        broken = nonfinite.find_nan(self.run, self.ready, self.raised, loss_rose=self._loss_rose())
        for episode in broken:
            if episode.kind is EpisodeKind.NAN and self.nan_from_step is None:
                self.nan_from_step = episode.onset_step
            if episode.kind is EpisodeKind.BENIGN_OUTLIER:
                self.num_outliers += 1
                self.outliers.append(episode)
            else:
                same = [one for one in self.episodes if self._era(one) == self._era(episode)]
                self.episodes.append(nonfinite.with_precursors(episode, same))
        if loss is not None:
            self._judge_stillness(loss)
            self.episodes += restarts.find_discontinuities(loss, self.raised.get("loss", ()))
        evaluation = broken_evaluation(self.ready)
        if evaluation is not None:
            self.episodes.append(evaluation)

    def _loss_rose(self) -> bool:
        """Whether the loss is out of range where the log ends."""
        return any(
            episode.end_step is None
            and any(m.signal == "loss" for m in episode.movements)
            and self._era(episode) == len(self.went_back) - 1
            for episode in (*self.episodes, *self.outliers)
        )

    def _judge_scale(self) -> None:
        scale = self.ready.traces.get("loss_scale")
        found = find_collapse(self.run, scale, loss_rose=self._loss_rose())
        if found is None:
            return
        raised: list[Alarm] = []
        if scale is not None:
            until = min(
                (one.clock - 1 for one in self.went_back if one.clock > found.start_clock),
                default=1 << 62,
            )
            mine = between(self.raised.get("loss_scale", ()), found.start_clock, until)
            raised = [on_steps(alarm, scale) for alarm in mine]
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
            (m, episode.causal_onset_step)
            for episode in self.episodes
            for m in episode.movements
            if m.signal == "loss" and m.onset_step >= found.start_step
            if self._era(episode) == era(self.went_back, found.start_clock)
        ]
        first, causal = min(moved, key=lambda each: each[0].onset_step, default=(None, None))
        alarms = [(alarm.step, alarm.onset_step) for alarm in raised[:1]]
        if first is not None and first.alarm_step is not None and causal is not None:
            alarms.append((first.alarm_step, causal))
        alarm_step, causal_onset_step = min(alarms, default=(None, None))
        self.episodes.append(
            Episode(
                kind=EpisodeKind.LOSS_SCALE_COLLAPSE,
                onset_step=found.start_step,
                peak_step=found.end_step,
                end_step=None,
                first_mover="loss_scale",
                lead_to_loss_move_steps=first.onset_step - found.start_step if first else None,
                lead_to_loss_peak_steps=first.peak_step - found.start_step if first else None,
                causal_onset_step=causal_onset_step,
                alarm_step=alarm_step,
                movements=(movement, first) if first else (movement,),
                statement=found.reason,
                clock=found.start_clock,
            )
        )

    def _judge_stillness(self, loss: Trace) -> None:
        found = stillness.find_stillness(self.ready, loss)
        if found is None:
            return
        clock = int(loss.clock[found.start])
        mine = between(self.raised.get("loss", ()), clock, 1 << 62)
        self.episodes.append(
            begins_at(
                EpisodeKind.PLATEAU,
                "loss",
                int(loss.steps[found.start]),
                clock,
                found.reason,
                value=float(loss.values[found.start]),
                alarms=of_kind(AlarmKind.PLATEAU, mine, loss),
            )
        )

    def finding(self) -> RunFinding:
        """The class, the verdict and everything behind them."""
        run_class = self._class()
        ranked = sorted(self.episodes, key=lambda one: CLASS_OF[one.kind].severity)
        ranked.sort(key=lambda one: CLASS_OF[one.kind] is not run_class)
        listed = sorted(ranked[:_SHOWN_EPISODES], key=self._when)
        shown = (*listed, *self.outliers[:SHOWN_OUTLIERS])
        finding = RunFinding(
            run=self.run,
            run_class=run_class,
            verdict="",
            episodes=shown,
            num_outliers=self.num_outliers,
            nan_from_step=self.nan_from_step,
            warnings=(*self.ready.warnings, *self._limits()),
            alarms={
                name: tuple(on_steps(alarm, self.ready.raw[name]) for alarm in found)
                for name, found in self.raised.items()
            },
        )
        verdict = verdict_of(finding, self.ready, num_episodes=len(self.episodes))
        finding = replace(finding, verdict=verdict, diagnosis=self._diagnosis(finding))
        return replace(finding, advice=advise(finding))

    def _diagnosis(self, finding: RunFinding) -> Diagnosis | None:
        episode = deciding(finding)
        if episode is None or not finding.run_class.is_trouble:
            return None
        traces = {name: self.ready.traces[name] for name in WEIGHED if name in self.ready.traces}
        lineage = lineage_of(traces, self.went_back, episode.clock)
        return rank_causes(episode, lineage.traces, self.raised)

    def _class(self) -> RunClass:
        classes = [CLASS_OF[one.kind] for one in self.episodes]
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
        by_time = sorted(self.episodes, key=self._when, reverse=True)
        kinds = {one.kind: one for one in by_time}  # the first of each
        nan, collapse = kinds.get(EpisodeKind.NAN), kinds.get(EpisodeKind.LOSS_SCALE_COLLAPSE)
        if worst is not RunClass.NAN or nan is None:
            return worst
        if collapse is not None and self._when(collapse) <= self._when(nan):
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
                f"only {counted(len(loss), 'reading')} of the loss: trends cannot be judged, and "
                "live rules would still be warming up"
            )
        if not self.run.has_steps:
            found.append("the log names no steps: the numbers of its rows stand in for them")
        if loss is not None and loss.interval_steps >= 10 and self.run.has_steps:
            found.append(
                f"the loss is logged every {loss.interval_steps} steps: what is shorter is unseen"
            )
        if len(self.episodes) > _SHOWN_EPISODES:
            found.append(
                f"there are {len(self.episodes)} episodes: the worst {_SHOWN_EPISODES} are listed"
            )
        return found
