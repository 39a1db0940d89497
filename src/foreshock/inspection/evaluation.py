"""Judges the evaluation, where the training itself is healthy."""

import numpy as np

from foreshock.inspection.finding import Episode, EpisodeKind
from foreshock.inspection.trace import Ready

_LEAST = 2


def broken_evaluation(ready: Ready) -> Episode | None:
    """An evaluation loss that is NaN, or metrics that are exactly 0 in every evaluation."""
    loss = ready.loss
    if loss is not None and not loss.finite.all():
        return None
    evals = {name: trace for name, trace in ready.traces.items() if name.startswith("eval_")}
    for name, trace in evals.items():
        if "loss" in name and not trace.finite.all():
            step = int(trace.steps[int(np.argmin(trace.finite))])
            return _episode(step, name, f"{name} is not finite at step {step}; training is")
    metrics = [trace for name, trace in evals.items() if "loss" not in name and _counts(name)]
    if len(metrics) >= 3 and all(len(m) >= _LEAST and not m.values.any() for m in metrics):
        step = int(metrics[0].steps[0])
        names = ", ".join(sorted(trace.signal for trace in metrics)[:4])
        return _episode(
            step, metrics[0].signal, f"{names} are exactly 0 in every evaluation: nothing is found"
        )
    return None


def _counts(name: str) -> bool:
    """Whether a metric measures quality (and not time, samples or instances)."""
    words = ("runtime", "per_second", "time", "epoch", "images", "instances", "samples", "step")
    return not any(word in name for word in words)


def _episode(step: int, name: str, statement: str) -> Episode:
    return Episode(
        kind=EpisodeKind.EVAL_ONLY,
        onset_step=step,
        peak_step=step,
        end_step=None,
        first_mover=name,
        lead_to_loss_move_steps=None,
        lead_to_loss_peak_steps=None,
        statement=statement,
    )
