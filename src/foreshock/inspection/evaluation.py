"""Judges the evaluation, where the training itself is healthy."""

import numpy as np

from foreshock.inspection.finding import Episode, EpisodeKind, begins_at
from foreshock.inspection.trace import Ready

_LEAST, _LEAST_METRICS = 2, 3
_EARLY = 3
_FOUND = 0.05


def broken_evaluation(ready: Ready) -> Episode | None:
    """An evaluation loss that is NaN, or metrics that are exactly 0 in every evaluation."""
    loss = ready.loss
    if loss is not None and not loss.finite.all():
        return None
    evals = {name: trace for name, trace in ready.traces.items() if name.startswith("eval_")}
    for name, trace in evals.items():
        if "loss" in name and not trace.finite.all():
            step, clock = trace.at(int(np.argmin(trace.finite)))
            words = f"{name} is not finite at step {step}; training is"
            return begins_at(EpisodeKind.EVAL_ONLY, name, step, clock, words)
    metrics = [trace for name, trace in evals.items() if "loss" not in name and _counts(name)]
    same = [one for one in metrics if len(one) == len(metrics[0]) >= _LEAST]
    if len(same) < _LEAST_METRICS:
        return None
    zero = np.all([one.values == 0 for one in same], axis=0)
    names = ", ".join(sorted(trace.signal for trace in same)[:4])
    first = same[0]
    if zero.all():
        words = f"{names} are exactly 0 in every evaluation"
        step, clock = first.at(0)
        return begins_at(EpisodeKind.EVAL_ONLY, first.signal, step, clock, words, value=0.0)
    # Early in training nothing may be found yet; later, all of it at once is no measurement.
    late = zero & (first.steps > _EARLY * first.interval_steps)
    if late.any() and np.max([one.values.max() for one in same]) > _FOUND:
        step, clock = first.at(int(np.argmax(late)))
        words = f"{names} are all exactly 0 at step {step} alone"
        return begins_at(EpisodeKind.EVAL_ONLY, first.signal, step, clock, words, value=0.0)
    return None


def _counts(name: str) -> bool:
    """Whether a metric measures quality (and not time, samples or instances)."""
    words = ("runtime", "per_second", "time", "epoch", "images", "instances", "samples", "step")
    return not any(word in name for word in words)
