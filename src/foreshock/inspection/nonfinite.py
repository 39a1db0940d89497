"""Judges what is not finite: a loss that became NaN, a gradient that stayed NaN, or a passing
overflow."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from foreshock.core.log import EventKind, LoggedRun
from foreshock.inspection.finding import Episode, EpisodeKind, Movement
from foreshock.inspection.gradient import lasting_nan, skipped_for_nan
from foreshock.inspection.trace import Ready, Trace

_LASTING = 0.5
"""Share of the readings after the first NaN that are NaN too, for a NaN that stayed."""


def find_nan(run: LoggedRun, ready: Ready) -> list[Episode]:
    """Every non-finite stretch, as episodes of kind NAN, explosion or benign outlier."""
    found: list[Episode] = []
    loss, norm = ready.loss, ready.grad_norm
    skipped = skipped_for_nan(run)
    if skipped is not None:
        found.append(
            _episode(
                EpisodeKind.GRAD_NORM_EXPLOSION,
                "grad_norm",
                skipped,
                None,
                f"the program skipped an update at step {skipped}: its gradient norm was NaN",
            )
        )
    if loss is not None and not loss.finite.all():
        found.append(_loss_nan(loss))
    elif (said := _said(run)) is not None:
        found.append(
            _episode(
                EpisodeKind.NAN,
                "loss",
                said,
                None,
                f"the program says, after step {said}, that its loss is NaN",
            )
        )
    if norm is not None and not norm.finite.all() and (loss is None or loss.finite.all()):
        start = lasting_nan(norm)
        if start is not None:
            step = int(norm.steps[start])
            words = f"the gradient norm is NaN from step {step} to the end of the log"
            if loss is not None:
                words += ", while the loss that is printed stays finite"
            found.append(_episode(EpisodeKind.NAN, "grad_norm", step, None, words))
        else:
            found.append(_passing(norm))
    return found


def with_precursors(episode: Episode, others: Sequence[Episode]) -> Episode:
    """A NaN that follows an excursion still open when it came began where that did."""
    if episode.kind is not EpisodeKind.NAN:
        return episode
    before = [
        other
        for other in others
        if other.matters
        and other.onset_step < episode.onset_step
        and (other.end_step is None or other.end_step >= episode.onset_step)
        and other.movements
    ]
    if not before:
        return episode
    first = min(before, key=lambda other: other.onset_step)
    moved = next((m.onset_step for m in first.movements if m.signal == "loss"), None)
    return replace(
        episode,
        first_mover=first.first_mover,
        onset_step=first.onset_step,
        lead_to_loss_move_steps=None if moved is None else moved - first.onset_step,
        lead_to_loss_peak_steps=episode.onset_step - first.onset_step,
        causal_onset_step=first.causal_onset_step,
        alarm_step=first.alarm_step,
        movements=(*episode.movements, *first.movements),
        statement=f"{episode.statement}; it had left its range at step {first.onset_step}",
    )


def _loss_nan(loss: Trace) -> Episode:
    broken = ~loss.finite
    start = int(np.argmax(broken))
    rest = broken[start:]
    step = int(loss.steps[start])
    if broken[-1] and rest.mean() >= _LASTING:
        tail = len(broken) - int(np.argmin(broken[::-1])) if not broken.all() else 0
        if rest[: tail - start].size and not rest[: tail - start].all():
            words = f"the loss is NaN first at step {step}, for good from step {loss.steps[tail]}"
        else:
            words = f"the loss is NaN from step {step} to the end of the log"
        return _episode(EpisodeKind.NAN, "loss", step, None, words)
    count = int(broken.sum())
    after = np.flatnonzero(~broken[start:])
    end = int(loss.steps[start + int(after[0])]) if len(after) else None
    words = f"the loss is NaN in {count} of {len(loss)} readings, first at step {step}"
    return _episode(EpisodeKind.NAN, "loss", step, end, words)


def _passing(norm: Trace) -> Episode:
    broken = np.flatnonzero(~norm.finite)
    step = int(norm.steps[broken[0]])
    later = np.flatnonzero(norm.finite[broken[0] :])
    end = int(norm.steps[broken[0] + int(later[0])]) if len(later) else None
    words = (
        f"the gradient norm is not finite in {len(broken)} of {len(norm)} readings, first at "
        f"step {step}; the loss shows no effect (fp16 skips such updates)"
    )
    return _episode(EpisodeKind.BENIGN_OUTLIER, "grad_norm", step, end, words)


def _said(run: LoggedRun) -> int | None:
    for event in run.events:
        if event.kind is EventKind.NONFINITE and event.signal in ("", "loss"):
            return event.step or 0
    return None


def _episode(kind: EpisodeKind, signal: str, step: int, end: int | None, statement: str) -> Episode:
    is_loss = signal == "loss"
    movement = Movement(
        signal=signal,
        onset_step=step,
        peak_step=step,
        end_step=end,
        peak_value=float("nan"),
        baseline=float("nan"),
    )
    return Episode(
        kind=kind,
        onset_step=step,
        peak_step=step,
        end_step=end,
        first_mover=signal,
        lead_to_loss_move_steps=0 if is_loss else None,
        lead_to_loss_peak_steps=0 if is_loss else None,
        alarm_step=step,
        causal_onset_step=step,
        movements=(movement,),
        statement=statement,
    )
