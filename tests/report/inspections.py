"""Inspections built by hand, for the tests of what is shown of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from foreshock.core.cause import Branch, Candidate, Diagnosis, Evidence
from foreshock.core.log import EventKind, LogEvent, LoggedRun, LogSeries
from foreshock.core.reading import Reading
from foreshock.inspection.finding import (
    Episode,
    EpisodeKind,
    Inspection,
    Movement,
    RunClass,
    RunFinding,
)

NAN = math.nan


def series(
    signal: str,
    values: Sequence[float] | np.ndarray,
    steps: Sequence[int] | np.ndarray | None = None,
    attempts: Sequence[int] | np.ndarray | None = None,
) -> LogSeries:
    """A series; its clock counts the values on from its first step."""
    at = np.arange(1, len(values) + 1) if steps is None else np.asarray(steps)
    restarted = attempts is not None
    return LogSeries(
        signal=signal,
        label=signal,
        steps=at.astype(np.int64),
        values=np.asarray(values, float),
        clock=(at[0] + np.arange(len(at)) if restarted else at).astype(np.int64),
        attempts=np.asarray(attempts if restarted else np.zeros(len(at)), np.int64),
        lines=np.arange(1, len(at) + 1),
    )


def run_of(*found: LogSeries, number: int = 1, **rest: Any) -> LoggedRun:
    return LoggedRun(
        number=number, has_steps=True, series={one.signal: one for one in found}, **rest
    )


def spiked_run(length: int = 400, at: int = 200, number: int = 1, **rest: Any) -> LoggedRun:
    """The loss falls from 8 to 3 and jumps to 7 at a step; the norm grew for 10 steps before."""
    steps = np.arange(1, length + 1)
    loss = 3 + 5 * np.exp(-steps / 50)
    loss[at - 1 :] += 4 * np.exp(-np.arange(length - at + 1) / 6)
    norm = np.full(length, 0.5)
    norm[at - 11 : at] = 0.5 * np.exp(np.linspace(0.5, 4, 11))
    lr = np.full(length, 3e-4)
    found = (series("loss", loss), series("grad_norm", norm), series("lr", lr))
    return run_of(*found, number=number, **rest)


def spike(at: int = 200, kind: EpisodeKind = EpisodeKind.RECOVERING_SPIKE, **rest: Any) -> Episode:
    """The episode of `spiked_run`."""
    moved = (
        Movement(
            signal="grad_norm",
            onset_step=at - 10,
            peak_step=at,
            end_step=at + 1,
            peak_value=27.3,
            baseline=0.5,
            alarm_step=at - 9,
            detectors=("spike",),
        ),
        Movement(
            signal="loss",
            onset_step=at,
            peak_step=at,
            end_step=at + 20,
            peak_value=7.09,
            baseline=3.0,
            alarm_step=at,
            detectors=("spike", "median_ratio"),
        ),
    )
    fields: dict[str, Any] = {
        "kind": kind,
        "onset_step": at - 10,
        "peak_step": at,
        "end_step": at + 20,
        "first_mover": "grad_norm",
        "lead_to_loss_move_steps": 10,
        "lead_to_loss_peak_steps": 10,
        "causal_onset_step": at - 9,
        "alarm_step": at - 8,
        "after_effect": 0.012,
        "after_effect_sds": 0.4,
        "steps_lost": 19,
        "movements": moved,
        "statement": "the loss jumped to 7.09",
    }
    return Episode(**(fields | rest))


def outlier(at: int, value: float = 9.0, signal: str = "grad_norm") -> Episode:
    moved = Movement(
        signal=signal,
        onset_step=at,
        peak_step=at,
        end_step=at + 1,
        peak_value=value,
        baseline=0.5,
    )
    return Episode(
        kind=EpisodeKind.BENIGN_OUTLIER,
        onset_step=at,
        peak_step=at,
        end_step=at + 1,
        first_mover=signal,
        lead_to_loss_move_steps=None,
        lead_to_loss_peak_steps=None,
        movements=(moved,),
    )


def diagnosis(statement: str = "the norm rose 54-fold", cause: str = "data_batch") -> Diagnosis:
    reading = (Reading(0, 190, "grad_norm", "global", 27.3),)
    facts = (
        Evidence(statement=statement, weight=2.1, readings=reading),
        Evidence(statement="a lesser fact for it", weight=0.3),
        Evidence(statement="it rose slowly", weight=-0.8),
    )
    rest = {"data_may_be_at_fault": False, "settled_by": "the same batch again"}
    candidates = (
        Candidate(cause=cause, probability=0.62, evidence=facts, **rest),
        Candidate(cause="lr_too_high", probability=0.35, evidence=(), **rest),
        Candidate(cause="unknown", probability=0.03, evidence=(), **rest),
    )
    return Diagnosis(
        onset_step=191,
        alarm_step=192,
        loss_moved_step=200,
        first_mover="grad_norm/global",
        candidates=candidates,
        path=(Branch(question="Is it NaN?", answer="no", readings=reading),),
    )


def finding(run: LoggedRun | None = None, **rest: Any) -> RunFinding:
    fields: dict[str, Any] = {
        "run_class": RunClass.RECOVERING_SPIKE,
        "verdict": "One loss spike at step 200 that healed by itself.",
        "episodes": (spike(), outlier(50), outlier(90, 12.0)),
        "num_outliers": 14,
        "warnings": ("the loss is logged every step",),
        "advice": ("Skip the batches of steps 190 to 200.", "Clip at 1.0."),
        "diagnosis": diagnosis(),
    }
    return RunFinding(run=run or spiked_run(), **(fields | rest))


def healthy(run: LoggedRun | None = None, **rest: Any) -> RunFinding:
    fields: dict[str, Any] = {
        "run_class": RunClass.HEALTHY,
        "verdict": "Nothing out of range.",
        "num_outliers": 0,
    }
    return RunFinding(run=run or spiked_run(), **(fields | rest))


def inspection(
    *findings: RunFinding,
    path: str = "runs/a/train.log",
    notes: tuple[str, ...] = (),
    facts: Mapping[str, str] | None = None,
) -> Inspection:
    return Inspection(
        path=path,
        format="megatron",
        title="Megatron-LM",
        findings=findings or (finding(),),
        notes=notes,
        facts=dict(facts or {}),
    )


def event(text: str) -> LogEvent:
    return LogEvent(kind=EventKind.STOPPED, step=3, line=7, text=text)
