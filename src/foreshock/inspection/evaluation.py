"""Judges the evaluation, where the training itself is healthy."""

import numpy as np

from foreshock.inspection.finding import Episode, EpisodeKind, Movement
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
            step = int(trace.steps[int(np.argmin(trace.finite))])
            words = f"{name} is not finite at step {step}; training is"
            clock = int(trace.clock[int(np.argmin(trace.finite))])
            return _episode(step, clock, name, words, float("nan"))
    metrics = [trace for name, trace in evals.items() if "loss" not in name and _counts(name)]
    same = [one for one in metrics if len(one) == len(metrics[0]) >= _LEAST]
    if len(same) < _LEAST_METRICS:
        return None
    zero = np.all([one.values == 0 for one in same], axis=0)
    names = ", ".join(sorted(trace.signal for trace in same)[:4])
    first = same[0]
    if zero.all():
        words = f"{names} are exactly 0 in every evaluation"
        return _episode(int(first.steps[0]), int(first.clock[0]), first.signal, words)
    # Early in training nothing may be found yet; later, all of it at once is no measurement.
    late = zero & (first.steps > _EARLY * first.interval_steps)
    if late.any() and np.max([one.values.max() for one in same]) > _FOUND:
        step, clock = (int(each[int(np.argmax(late))]) for each in (first.steps, first.clock))
        words = f"{names} are all exactly 0 at step {step} alone"
        return _episode(step, clock, first.signal, words)
    return None


def _counts(name: str) -> bool:
    """Whether a metric measures quality (and not time, samples or instances)."""
    words = ("runtime", "per_second", "time", "epoch", "images", "instances", "samples", "step")
    return not any(word in name for word in words)


def _episode(step: int, clock: int, name: str, statement: str, value: float = 0.0) -> Episode:
    movement = Movement(
        signal=name,
        onset_step=step,
        peak_step=step,
        end_step=None,
        peak_value=value,
        baseline=float("nan"),
    )
    return Episode(
        kind=EpisodeKind.EVAL_ONLY,
        onset_step=step,
        peak_step=step,
        end_step=None,
        first_mover=name,
        lead_to_loss_move_steps=None,
        lead_to_loss_peak_steps=None,
        movements=(movement,),
        statement=statement,
        clock=clock,
    )
