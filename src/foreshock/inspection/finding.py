"""What an inspection finds: movements, episodes, one finding a run, and all of a log."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from foreshock.core.cause import Diagnosis
from foreshock.core.detector import Alarm
from foreshock.core.log import LoggedRun
from foreshock.core.reading import json_number


class RunClass(StrEnum):
    """What a run's log comes to, the worst first."""

    NAN = "nan"
    LOSS_SCALE_COLLAPSE = "loss_scale_collapse"
    DIVERGENCE = "divergence"
    GRAD_NORM_EXPLOSION = "grad_norm_explosion"
    PLATEAU = "plateau"
    RECOVERING_SPIKE = "recovering_spike"
    RESTART_DISCONTINUITY = "restart_discontinuity"
    SHIFT = "shift"
    EVAL_ONLY_NAN = "eval_only_nan"
    BENIGN_OUTLIERS = "benign_outliers"
    NOT_JUDGEABLE = "not_judgeable"
    HEALTHY = "healthy"

    @property
    def is_trouble(self) -> bool:
        """Whether someone should look at it."""
        quiet = (RunClass.BENIGN_OUTLIERS, RunClass.NOT_JUDGEABLE, RunClass.HEALTHY)
        return self not in quiet

    @property
    def severity(self) -> int:
        """0 is the worst."""
        return list(RunClass).index(self)


class EpisodeKind(StrEnum):
    """What an episode turned out to be, looking at it from both sides."""

    NAN = "nan"
    LOSS_SCALE_COLLAPSE = "loss_scale_collapse"
    DIVERGENCE = "divergence"
    GRAD_NORM_EXPLOSION = "grad_norm_explosion"
    NON_RECOVERING_SPIKE = "non_recovering_spike"
    RECOVERING_SPIKE = "recovering_spike"
    PLATEAU = "plateau"
    RESTART_DISCONTINUITY = "restart_discontinuity"
    EVAL_ONLY = "eval_only"
    BENIGN_OUTLIER = "benign_outlier"


CLASS_OF = {
    EpisodeKind.NAN: RunClass.NAN,
    EpisodeKind.LOSS_SCALE_COLLAPSE: RunClass.LOSS_SCALE_COLLAPSE,
    EpisodeKind.DIVERGENCE: RunClass.DIVERGENCE,
    EpisodeKind.GRAD_NORM_EXPLOSION: RunClass.GRAD_NORM_EXPLOSION,
    EpisodeKind.NON_RECOVERING_SPIKE: RunClass.SHIFT,
    EpisodeKind.RECOVERING_SPIKE: RunClass.RECOVERING_SPIKE,
    EpisodeKind.PLATEAU: RunClass.PLATEAU,
    EpisodeKind.RESTART_DISCONTINUITY: RunClass.RESTART_DISCONTINUITY,
    EpisodeKind.EVAL_ONLY: RunClass.EVAL_ONLY_NAN,
}
"""What a run comes to that has an episode of a kind that matters, and no worse one."""


@dataclass(frozen=True, kw_only=True)
class Movement:
    """How one signal left its range in an episode, looking from both sides.

    Attributes:
        onset_step: first step outside the range that the readings before (and, in a short
            log, after) define.
        peak_step: step of the value farthest out.
        end_step: first step back in range for good; None if it never came back.
        peak_value: that value, in the signal's unit; may be NaN or Inf.
        baseline: what it was before, in the signal's unit; NaN if nothing was before.
        alarm_step: step of the first causal alarm, as live watching would have raised it;
            None if it would not have (too little past).
        detectors: the rules that alarmed.
    """

    signal: str
    onset_step: int
    peak_step: int
    end_step: int | None
    peak_value: float
    baseline: float
    alarm_step: int | None = None
    detectors: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        return {
            "signal": self.signal,
            "onset_step": self.onset_step,
            "peak_step": self.peak_step,
            "end_step": self.end_step,
            "peak_value": json_number(self.peak_value),
            "baseline": json_number(self.baseline),
            "alarm_step": self.alarm_step,
            "detectors": list(self.detectors),
        }


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A stretch in which signals left their range together.

    Attributes:
        onset_step, peak_step, end_step: of the whole, refined from both sides; `end_step`
            is None while it is open at the end of the log.
        causal_onset_step: the onset as live watching would have named it; None if no rule
            alarmed.
        alarm_step: step of the first causal alarm, None likewise.
        first_mover: signal that left its range first (the loss, if it was at once).
        lead_to_loss_move_steps: from the first mover's onset to the loss's; None if the
            loss did not move.
        lead_to_loss_peak_steps: likewise to the loss's peak.
        after_effect: what the loss lost for good, in its unit: level after it, less what
            the trend before promises; NaN where it cannot be told.
        after_effect_sds: the same in robust standard deviations.
        steps_lost: steps until the loss was back at the level it had at the onset; None
            if it never was, or did not move.
        statement: one sentence with the numbers.
        clock: of the peak, to tell apart what was trained twice; not shown.
    """

    kind: EpisodeKind
    onset_step: int
    peak_step: int
    end_step: int | None
    first_mover: str
    lead_to_loss_move_steps: int | None
    lead_to_loss_peak_steps: int | None
    causal_onset_step: int | None = None
    alarm_step: int | None = None
    after_effect: float = float("nan")
    after_effect_sds: float = float("nan")
    steps_lost: int | None = None
    movements: tuple[Movement, ...] = ()
    statement: str = ""
    clock: int = 0

    @property
    def matters(self) -> bool:
        """Whether it is more than an outlier without after-effect."""
        return self.kind is not EpisodeKind.BENIGN_OUTLIER

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        return {
            "kind": str(self.kind),
            "onset_step": self.onset_step,
            "peak_step": self.peak_step,
            "end_step": self.end_step,
            "first_mover": self.first_mover,
            "lead_to_loss_move_steps": self.lead_to_loss_move_steps,
            "lead_to_loss_peak_steps": self.lead_to_loss_peak_steps,
            "causal_onset_step": self.causal_onset_step,
            "alarm_step": self.alarm_step,
            "after_effect": json_number(self.after_effect),
            "after_effect_sds": json_number(self.after_effect_sds),
            "steps_lost": self.steps_lost,
            "movements": [movement.to_json() for movement in self.movements],
            "statement": self.statement,
        }


def begins_at(
    kind: EpisodeKind,
    signal: str,
    step: int,
    clock: int,
    statement: str,
    *,
    value: float = math.nan,
    baseline: float = math.nan,
    alarms: Sequence[Alarm] = (),
) -> Episode:
    """An open episode of one signal of which only the beginning is known, not a shape.

    Args:
        alarms: the causal ones that tell of it, with the log's steps, in the order of time.
    """
    first = alarms[0] if alarms else None
    movement = Movement(
        signal=signal,
        onset_step=step,
        peak_step=step,
        end_step=None,
        peak_value=value,
        baseline=baseline,
        alarm_step=first.step if first else None,
        detectors=tuple(sorted({alarm.detector for alarm in alarms})),
    )
    lead = 0 if signal == "loss" else None
    return Episode(
        kind=kind,
        onset_step=step,
        peak_step=step,
        end_step=None,
        first_mover=signal,
        lead_to_loss_move_steps=lead,
        lead_to_loss_peak_steps=lead,
        causal_onset_step=first.onset_step if first else None,
        alarm_step=movement.alarm_step,
        movements=(movement,),
        statement=statement,
        clock=clock,
    )


@dataclass(frozen=True, kw_only=True)
class RunFinding:
    """What one run of a log comes to.

    Attributes:
        run: its series and events.
        run_class: the class.
        verdict: the finding in one sentence, with its numbers.
        episodes: those that matter, in order, then as many benign outliers as are shown.
        num_outliers: benign outliers in all, shown or not.
        nan_from_step: step from which the loss (or the gradient for good) is NaN.
        warnings: what limits the judgement, one sentence each.
        advice: what to do, most useful first, one sentence each.
        diagnosis: the ranked causes of the worst episode, where there is enough to weigh.
        alarms: causal alarms by signal, as live watching would have raised them; their
            steps are the log's.
    """

    run: LoggedRun
    run_class: RunClass
    verdict: str
    episodes: tuple[Episode, ...] = ()
    num_outliers: int = 0
    nan_from_step: int | None = None
    warnings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    alarms: Mapping[str, tuple[Alarm, ...]] = field(default_factory=dict[str, tuple[Alarm, ...]])

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last step of the loss (of any signal, if it is not logged)."""
        series = self.run.series.get("loss") or next(iter(self.run.series.values()), None)
        if series is None or len(series) == 0:
            return None
        return int(np.min(series.steps)), int(np.max(series.steps))

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        span = self.span
        return {
            "number": self.run.number,
            "class": str(self.run_class),
            "verdict": self.verdict,
            "has_steps": self.run.has_steps,
            "first_step": span[0] if span else None,
            "last_step": span[1] if span else None,
            "signals": {name: len(series) for name, series in sorted(self.run.series.items())},
            "num_restarts": len(self.run.restarts),
            "num_events": len(self.run.events),
            "episodes": [episode.to_json() for episode in self.episodes],
            "num_outliers": self.num_outliers,
            "nan_from_step": self.nan_from_step,
            "warnings": list(self.warnings),
            "advice": list(self.advice),
            "diagnosis": self.diagnosis.to_json() if self.diagnosis else None,
        }


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a log comes to: the finding of each of its runs, and of the worst as a whole.

    Attributes:
        path, format, title, notes, facts: of the log.
        findings: one a run, in the order of the file; at least one.
    """

    path: str
    format: str
    title: str
    findings: tuple[RunFinding, ...]
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def worst(self) -> RunFinding:
        """The finding that speaks for the log: the most severe, the longest of equals; one
        that cannot be judged only where none can."""
        return min(
            self.findings,
            key=lambda one: (
                one.run_class is RunClass.NOT_JUDGEABLE,
                one.run_class.severity,
                -one.run.num_values,
            ),
        )

    @property
    def run_class(self) -> RunClass:
        """The class of the worst run."""
        return self.worst.run_class

    @property
    def exit_code(self) -> int:
        """0 where nothing is wrong, 1 where trouble was found."""
        return 1 if self.run_class.is_trouble else 0

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object; the schema is documented in docs/diagnose.md."""
        worst = self.worst
        episodes = [
            {"run": finding.run.number, **episode.to_json()}
            for finding in self.findings
            for episode in finding.episodes
        ]
        return {
            "path": self.path,
            "format": self.format,
            "verdict": worst.verdict,
            "class": str(self.run_class),
            "episodes": episodes,
            "nan_from_step": worst.nan_from_step,
            "warnings": [*worst.warnings, *self.notes],
            "runs": [finding.to_json() for finding in self.findings],
        }
