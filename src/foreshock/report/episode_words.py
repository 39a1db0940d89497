"""The sentences of a diagnosis: episodes, outliers and extents, from their numbers."""

import math
import os
from collections.abc import Sequence

from foreshock.core.log import LoggedRun
from foreshock.inspection.finding import Episode, EpisodeKind, Movement, RunClass, RunFinding
from foreshock.report import words
from foreshock.report.clean import clean_text
from foreshock.report.log_curves import movement_of

_TITLES = {
    "nan": "NaN",
    "eval_only_nan": "NaN in evaluation only",
    "eval_only": "broken evaluation",
    "not_judgeable": "too little to judge",
}
SEVERE = frozenset(
    {
        *(EpisodeKind.NAN, EpisodeKind.LOSS_SCALE_COLLAPSE, EpisodeKind.DIVERGENCE),
        *(EpisodeKind.GRAD_NORM_EXPLOSION, EpisodeKind.NON_RECOVERING_SPIKE),
    }
)


def title(kind: RunClass | EpisodeKind) -> str:
    """What people call a class of run or a kind of episode.

    >>> title(RunClass.NAN), title(RunClass.EVAL_ONLY_NAN), title(EpisodeKind.PLATEAU)
    ('NaN', 'NaN in evaluation only', 'plateau')
    """
    return _TITLES.get(str(kind), words.plain(kind))


def severe(episode: Episode) -> bool:
    """Whether an episode is shown as one that the run does not get over by itself."""
    return episode.kind in SEVERE


def ranked(episodes: Sequence[Episode]) -> list[Episode]:
    """Those that matter, the worst first; of equals the one with the larger after-effect."""

    def weight(one: Episode) -> tuple[int, float, int]:
        harm = 0.0 if math.isnan(one.after_effect_sds) else one.after_effect_sds
        return list(EpisodeKind).index(one.kind), -harm, one.onset_step

    return sorted((one for one in episodes if one.matters), key=weight)


def when(episode: Episode) -> str:
    """The steps of an episode.

    >>> one = Episode(kind=EpisodeKind.NAN, onset_step=1200, peak_step=1201, end_step=None,
    ...     first_mover="loss", lead_to_loss_move_steps=0, lead_to_loss_peak_steps=1)
    >>> when(one)
    'from step 1,200 on'
    """
    if episode.end_step is None:
        return f"from step {episode.onset_step:,} on"
    if episode.end_step == episode.onset_step:
        return f"step {episode.onset_step:,}"
    return f"steps {episode.onset_step:,} to {episode.end_step:,}"


def numbers(run: LoggedRun, episode: Episode) -> list[tuple[str, str]]:
    """The numbers of an episode, each with its name."""
    told = [("moved first", _first_mover(episode))]
    loss = movement_of(episode, "loss")
    mover = movement_of(episode, episode.first_mover)
    peaks = [one for one in (loss, mover) if one is not None]
    told.append(
        (
            "peak",
            "; ".join(
                f"{clean_text(one.signal)} {words.figure(one.peak_value)} at step "
                f"{one.peak_step:,}{_before(one)}"
                for one in dict.fromkeys(peaks)
            )
            or f"step {episode.peak_step:,}",
        )
    )
    told.append(("recovered", _recovery(run, episode)))
    told.append(("onset", _onset(episode)))
    return told


def brief(episode: Episode) -> str:
    """The numbers of an episode in one line."""
    told: list[str] = []
    before = episode.lead_to_loss_move_steps
    if episode.first_mover != "loss":
        lead = f", {words.count(before, 'step')} before the loss" if before else ""
        told.append(f"{clean_text(episode.first_mover)} first{lead}")
    loss = movement_of(episode, "loss")
    if loss is not None:
        usual = f"{words.figure(loss.baseline)} → " if math.isfinite(loss.baseline) else ""
        told.append(f"loss {usual}{words.figure(loss.peak_value)}")
    if episode.steps_lost is not None:
        told.append(f"{words.count(episode.steps_lost, 'step')} lost")
    return ", ".join(told) or f"peak at step {episode.peak_step:,}"


def outliers(finding: RunFinding) -> str:
    """The benign outliers of a run in one sentence."""
    listed = [one for one in finding.episodes if not one.matters]
    told = f"{words.count(finding.num_outliers, 'one-step outlier')} without after-effect"
    if listed:
        told += f" (largest: {outlier(max(listed, key=_size))})"
    return told


def outlier(episode: Episode) -> str:
    """One benign outlier: what, how large, where."""
    movement = movement_of(episode, episode.first_mover) or next(iter(episode.movements), None)
    if movement is None:
        return f"step {episode.peak_step:,}"
    usual = movement.baseline
    told = f"{clean_text(movement.signal)} {words.figure(movement.peak_value)} at step "
    told += f"{movement.peak_step:,}"
    return f"{told}, usually {words.figure(usual)}" if math.isfinite(usual) else told


def extent(finding: RunFinding) -> str:
    """From where to where a run goes."""
    if finding.span is None:
        return "no values"
    first, last = finding.span
    thing = "steps" if finding.run.has_steps else "rows"
    return f"{thing} {first:,}–{last:,}"


def short_paths(paths: Sequence[str]) -> list[str]:
    """Paths without the folder that all share.

    >>> short_paths(["runs/a/log.txt", "runs/b/log.txt"]), short_paths(["x/log.txt"])
    (['a/log.txt', 'b/log.txt'], ['log.txt'])
    """
    folders = [os.path.dirname(path) for path in paths]  # noqa: PTH120 - strings, not files
    try:
        shared = os.path.commonpath(folders) if folders else ""
    except ValueError:  # absolute beside relative
        shared = ""
    cut = len(shared) + (not shared.endswith("/")) if shared else 0
    return [path[cut:] for path in paths]


def cut_left(text: str, width: int) -> str:
    """The end of a text that is too long: of a path, the end tells more.

    >>> cut_left("runs/seed-12/log.txt", 10)
    '…2/log.txt'
    """
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def _first_mover(episode: Episode) -> str:
    told = f"{clean_text(episode.first_mover)} at step {episode.onset_step:,}"
    if episode.first_mover == "loss":
        return told
    before = episode.lead_to_loss_move_steps
    peak = episode.lead_to_loss_peak_steps
    if before is None:
        return f"{told}; the loss did not move"
    lead = (
        f"{words.count(before, 'step')} before the loss" if before > 0 else "together with the loss"
    )
    if peak is not None and peak > 0:
        lead += f", {words.count(peak, 'step')} before its peak"
    return f"{told}, {lead}"


def _recovery(run: LoggedRun, episode: Episode) -> str:
    if episode.end_step is None:
        parts = ["not by the end of the log"]
    else:
        parts = [f"at step {episode.end_step:,}"]
    if episode.steps_lost is not None:
        parts.append(f"{words.count(episode.steps_lost, 'step')} lost")
    if math.isfinite(episode.after_effect):
        worse = "higher" if episode.after_effect >= 0 else "lower"
        told = f"loss then {words.figure(abs(episode.after_effect))} {worse} than its trend"
        if math.isfinite(episode.after_effect_sds):
            told += f" ({abs(episode.after_effect_sds):.1f} sd)"
        parts.append(told)
    back = [(old, new) for old, new in run.restarts if old >= episode.onset_step >= new]
    if back:
        parts.append(f"the run was restarted from step {back[0][1]:,}")
    return "; ".join(parts)


def _before(movement: Movement) -> str:
    known = math.isfinite(movement.baseline)
    return f" (was {words.figure(movement.baseline)})" if known else ""


def _onset(episode: Episode) -> str:
    told = f"step {episode.onset_step:,}, seen from both sides; "
    if episode.alarm_step is None:
        return told + "live watching would not have alarmed"
    told += f"live, the first alarm comes at step {episode.alarm_step:,}"
    if episode.causal_onset_step is not None:
        told += f" and names {episode.causal_onset_step:,} (causal)"
    return told


def _size(episode: Episode) -> float:
    movement = movement_of(episode, episode.first_mover) or next(iter(episode.movements), None)
    if movement is None:
        return 0.0
    if not math.isfinite(movement.peak_value):
        return math.inf
    usual = abs(movement.baseline)
    apart = abs(movement.peak_value - movement.baseline)
    if not math.isfinite(apart):
        return 0.0
    return apart / usual if usual > 0 else apart
