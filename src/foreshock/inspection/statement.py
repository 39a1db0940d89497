"""Says what was found in one sentence, with its numbers."""

import math

import numpy as np

from foreshock.inspection.finding import (
    CLASS_OF,
    Episode,
    EpisodeKind,
    Movement,
    RunClass,
    RunFinding,
)
from foreshock.inspection.trace import Ready, Trace, counted

_NAMES = {"grad_norm": "the gradient norm", "loss_scale": "the loss scale", "loss": "the loss"}


def name_of(signal: str) -> str:
    """What a signal is called in a sentence."""
    return _NAMES.get(signal, signal)


def state(episode: Episode, trace: Trace) -> str:
    """One sentence on an episode of a signal."""
    main = next((m for m in episode.movements if m.signal == trace.signal), None)
    if main is None:
        return ""
    name = name_of(trace.signal)
    words = f"{name} went from {main.baseline:.4g} to {main.peak_value:.4g}"
    where = f" at step {main.peak_step}"
    match episode.kind:
        case EpisodeKind.BENIGN_OUTLIER:
            return f"{words}{where}, without after-effect"
        case EpisodeKind.GRAD_NORM_EXPLOSION:
            return f"{words}{where}, while the loss shows no lasting effect"
        case EpisodeKind.DIVERGENCE:
            return f"{words} from step {main.onset_step} on and did not come back"
    words += where
    if episode.end_step is not None:
        words += f", back by step {episode.end_step}"
    elif episode.kind is EpisodeKind.RECOVERING_SPIKE:
        words += "; the log ends there, so whether it recovers cannot be told"
    else:
        words += " and stayed above where it had been"
    return words + _lead(episode, main)


def _lead(episode: Episode, main: Movement) -> str:
    lead = episode.lead_to_loss_move_steps
    if episode.first_mover == main.signal or not lead:
        return ""
    name = name_of(episode.first_mover)
    return (
        f"; {name} moved first, at step {episode.onset_step}, {lead} step{'s' * (lead != 1)} "
        f"before the loss moved and {episode.lead_to_loss_peak_steps} before its peak"
    )


def verdict_of(finding: RunFinding, ready: Ready, *, num_episodes: int) -> str:
    """The finding in one sentence; `num_episodes` that matter, listed or not."""
    episode = deciding(finding)
    if episode is not None and episode.statement:
        more = num_episodes - 1
        tail = f" (and {more} more)" if more > 0 else ""
        return episode.statement[:1].upper() + episode.statement[1:] + tail
    return _calm(finding, ready)


def deciding(finding: RunFinding) -> Episode | None:
    """The episode that the class comes from."""
    kinds = [kind for kind, of in CLASS_OF.items() if of is finding.run_class]
    for kind in kinds:
        mine = [one for one in finding.episodes if one.kind is kind]
        if mine:
            return max(mine, key=_weight)
    return None


def _weight(episode: Episode) -> float:
    for movement in episode.movements:
        if movement.signal == "loss" and math.isfinite(movement.peak_value):
            return abs(movement.peak_value - movement.baseline)
    return 0.0


def _calm(finding: RunFinding, ready: Ready) -> str:
    loss = ready.loss
    if loss is None or not loss.finite.any():
        words = "Nothing out of range in what the log shows"
    else:
        values = loss.values[loss.finite]
        first, last = float(np.median(values[:3])), float(np.median(values[-3:]))
        words = f"The loss went from {first:.4g} to {last:.4g} in {counted(len(values), 'reading')}"
    if finding.run_class is RunClass.NOT_JUDGEABLE:
        return f"{words}: too few to judge anything"
    if finding.num_outliers:
        return f"{words}, with {counted(finding.num_outliers, 'outlier')} that left no trace"
    return f"{words}, without anything out of range"
