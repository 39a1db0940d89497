"""Judges what is not finite: a loss that became NaN, a gradient that stayed NaN, or a passing
overflow."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.log import EventKind, LogEvent, LoggedRun
from foreshock.inspection.alarms import between, of_kind
from foreshock.inspection.finding import Episode, EpisodeKind, Movement, begins_at
from foreshock.inspection.gradient import lasting_nan, skipped_for_nan
from foreshock.inspection.statement import name_of
from foreshock.inspection.trace import Ready, Trace, tail_of, time_of

_PART = re.compile(r"(?:\A|_)loss(?:_|\Z)")
_LASTING = 0.5
"""Share of the readings after the first NaN that are NaN too, for a NaN that stayed."""

_Told = Callable[[str, int], list[Alarm]]
"""Of a signal and a time: the causal alarms that were raised then for a value not finite."""

_BEFORE = 20
"""Readings before it that tell what a signal was."""


def find_nan(
    run: LoggedRun,
    ready: Ready,
    raised: Mapping[str, tuple[Alarm, ...]],
    *,
    loss_rose: bool,
) -> list[Episode]:
    """Every non-finite stretch, as episodes of kind NAN, explosion or benign outlier.

    Args:
        raised: causal alarms by signal, on the log's clock.
        loss_rose: the loss is out of range at the end: then a gradient norm that is NaN in the
            last reading alone is no overflow that passes.
    """

    def told(signal: str, clock: int) -> list[Alarm]:
        mine = between(raised.get(signal, ()), clock, clock)
        trace = ready.raw.get(signal)
        if trace is None:
            return []
        return of_kind(AlarmKind.NONFINITE, mine, trace)

    found: list[Episode] = []
    loss, norm = ready.loss, ready.grad_norm
    skipped = skipped_for_nan(run)
    if skipped is not None:
        step, clock = time_of(skipped, run)
        words = f"the program skipped an update at step {step}: its gradient norm was NaN"
        if not any("skip" in event.text.lower() for event in run.events):
            words = f"the program says, after step {step}, that its gradient norm is not finite"
        found.append(begins_at(EpisodeKind.GRAD_NORM_EXPLOSION, "grad_norm", step, clock, words))
    part = _broken_part(ready) if loss is None else None
    said = next((event for event in run.events if _speaks_of_loss(event)), None)
    if loss is not None and not loss.finite.all():
        found.append(_loss_nan(loss, told))
    elif part is not None:
        found.append(_loss_nan(part, told))
    elif said is not None:
        step, clock = time_of(said, run)
        words = f"the program says, after step {step}, that its loss is NaN"
        found.append(begins_at(EpisodeKind.NAN, "loss", step, clock, words))
    if norm is not None and not norm.finite.all() and (loss is None or loss.finite.all()):
        start = lasting_nan(norm, least=1 if loss_rose else 2)
        if start is not None:
            words = (
                f"the gradient norm is {_word(norm)} from step {int(norm.steps[start])} to the end "
                "of the log"
            )
            if loss is not None:
                words += ", while the loss that is printed stays finite"
            found.append(_episode(EpisodeKind.NAN, norm, start, None, words, told=told))
        else:
            found.append(_passing(norm, told))
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
    movements = _merged((*episode.movements, *first.movements))
    loss = next((one for one in movements if one.signal == "loss"), None)
    alarms = [
        (one.alarm_step, one.causal_onset_step)
        for one in (first, episode)
        if one.alarm_step is not None and one.causal_onset_step is not None
    ]
    alarm_step, causal_onset_step = min(alarms, default=(None, None))
    mover = next(one for one in movements if one.signal == first.first_mover)
    return replace(
        episode,
        first_mover=mover.signal,
        onset_step=mover.onset_step,
        lead_to_loss_move_steps=None if loss is None else loss.onset_step - mover.onset_step,
        lead_to_loss_peak_steps=None if loss is None else loss.peak_step - mover.onset_step,
        causal_onset_step=causal_onset_step,
        alarm_step=alarm_step,
        movements=movements,
        statement=(
            f"{episode.statement}; {name_of(mover.signal)} had left its range at step "
            f"{mover.onset_step}"
        ),
    )


def _merged(movements: Sequence[Movement]) -> tuple[Movement, ...]:
    """One movement a signal: the peak and the end of the first one given, the earliest onset
    and alarm of all."""
    merged: dict[str, Movement] = {}
    for one in movements:
        known = merged.setdefault(one.signal, one)
        if known is not one:
            early = min(known, one, key=lambda each: each.onset_step)
            alarms = [each.alarm_step for each in (known, one) if each.alarm_step is not None]
            merged[one.signal] = replace(
                known,
                onset_step=early.onset_step,
                baseline=early.baseline,
                alarm_step=min(alarms, default=None),
                detectors=tuple(sorted({*known.detectors, *one.detectors})),
            )
    return tuple(merged.values())


def _broken_part(ready: Ready) -> Trace | None:
    """Where no total is logged: the part of the loss that is first not finite."""
    parts = [
        trace
        for name, trace in ready.traces.items()
        if _PART.search(name) and not name.startswith("eval_") and not trace.finite.all()
    ]
    return min(parts, key=lambda trace: int(trace.clock[np.argmin(trace.finite)]), default=None)


def _loss_nan(loss: Trace, told: _Told) -> Episode:
    name, word = name_of(loss.signal), _word(loss)
    broken = ~loss.finite
    start = int(np.argmax(broken))
    rest = broken[start:]
    step = int(loss.steps[start])
    if broken[-1] and rest.mean() >= _LASTING:
        tail = tail_of(broken)
        if rest[: tail - start].size and not rest[: tail - start].all():
            words = f"{name} is {word} first at step {step}, for good from step {loss.steps[tail]}"
        else:
            words = f"{name} is {word} from step {step} to the end of the log"
        return _episode(EpisodeKind.NAN, loss, start, None, words, told=told)
    count = int(broken.sum())
    words = f"{name} is {word} in {count} of {len(loss)} readings, first at step {step}"
    return _episode(EpisodeKind.NAN, loss, start, _back(broken), words, told=told)


def _passing(norm: Trace, told: _Told) -> Episode:
    broken = ~norm.finite
    start = int(np.argmax(broken))
    words = (
        f"the gradient norm is not finite in {int(broken.sum())} of {len(norm)} readings, first at "
        f"step {int(norm.steps[start])}; the loss shows no lasting effect (fp16 skips them)"
    )
    return _episode(EpisodeKind.BENIGN_OUTLIER, norm, start, _back(broken), words, told=told)


def _back(broken: "NDArray[np.bool_]") -> int | None:
    """The place from which readings are finite for good."""
    return None if broken[-1] else tail_of(~broken)


def _word(trace: Trace) -> str:
    return "NaN" if np.isnan(trace.values).any() else "infinite"


def _speaks_of_loss(event: LogEvent) -> bool:
    return event.kind is EventKind.NONFINITE and event.signal in ("", "loss")


def _episode(
    kind: EpisodeKind,
    trace: Trace,
    start: int,
    end: int | None,
    statement: str,
    *,
    told: _Told,
) -> Episode:
    """An episode of a signal that is not finite from one place to another.

    Its alarms are those that were raised when it began, of the signal or of the gradient norm.
    """
    step, clock = int(trace.steps[start]), int(trace.clock[start])
    end_step = None if end is None else int(trace.steps[end])
    if end_step is not None and end_step < step:
        end_step = None  # it never came back: a restart undid it
    before = trace.values[:start][trace.finite[:start]][-_BEFORE:]
    main = Movement(
        signal=trace.signal,
        onset_step=step,
        peak_step=step,
        end_step=end_step,
        peak_value=float(trace.values[start]),
        baseline=float(np.median(before)) if len(before) else math.nan,
    )
    movements = [main]
    alarms: list[Alarm] = []
    for name in dict.fromkeys((trace.signal, "grad_norm")):
        mine = [alarm for alarm in told(name, clock) if alarm.step == step]
        if not mine:
            continue
        alarms += mine
        live = {"alarm_step": step, "detectors": tuple(sorted({one.detector for one in mine}))}
        if name == trace.signal:
            movements[0] = replace(main, **live)
        else:
            value = mine[0].value
            movements.append(
                replace(main, signal=name, peak_value=value, baseline=math.nan, **live)
            )
    is_loss = trace.signal != "grad_norm"
    return Episode(
        kind=kind,
        onset_step=step,
        peak_step=step,
        end_step=end_step,
        first_mover=trace.signal,
        lead_to_loss_move_steps=0 if is_loss else None,
        lead_to_loss_peak_steps=0 if is_loss else None,
        causal_onset_step=min(alarm.onset_step for alarm in alarms) if alarms else None,
        alarm_step=step if alarms else None,
        movements=tuple(movements),
        statement=statement,
        clock=clock,
    )
