"""Low precision: the walk of the loss scale, and what rounding takes away."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from foreshock.core.case import REFERENCE_STEPS, Case
from foreshock.core.looking import finite, graded
from foreshock.core.symptom import Look, Symptom

_SCALE, _LOG2, _LOST = "loss_scale/global", "loss_scale_log2/global", "lost_update_share/global"
_FP16 = ("fp16", "float16", "half")
_LOW = ("bf16", "bfloat16", "fp8", "float8", "int8", "mxfp", "nvfp")
_FULL = ("fp32", "float32", "fp64", "float64", "tf32", "single", "double", "32", "64")
_NUMBERS = {"16": "fp16", "16-mixed": "fp16", "16-true": "fp16"}


@dataclass(frozen=True, kw_only=True)
class Scale(Look):
    """How the run computes, and whether numbers leave the range of its format.

    The scale falls at every step: its longest fall near the onset halves it once a step or
    more, over some halvings; gradients overflow on every batch, whatever the scale. It fell with
    a finite loss: halvings in a row from 50 steps before the onset on, at finite losses: only
    gradients overflow. One halving is a scaler's daily work. Rows of a log are some steps apart,
    and a row counts as many halvings as it shows. Both are asked only where a scale is read.

    fp16 and low precision are facts of the run; a scale other than 1 tells of fp16 too. What
    rounding keeps from moving is measured where weights have 16 bits.

    Usual: of the sources' large runs two used fp16, most use bf16; fp32 is the rule in small
    ones. Falls of the scale belong to fp16, and are shares of the runs that have a scale.

    Args:
        every_step: halvings in a row that count in full, 4; one counts nothing.
        lost: share of weights that did not move, 0.5. No source: our choice, because there
            half of what the optimizer asks for is not done.
    """

    name: ClassVar[str] = "scale"
    usual: ClassVar[Mapping[str, float]] = {
        "scale_falling_every_step": 0.3,
        "scale_fell_with_finite_loss": 0.35,
        "runs_in_fp16": 0.15,
        "runs_in_low_precision": 0.5,
        "updates_lost_to_rounding": 0.3,
    }
    every_step: int = 4
    lost: float = 0.5

    def look(self, case: Case) -> Iterable[Symptom]:
        steps, scale = _log2_scale(case)
        if len(scale) >= 2 and steps[-1] >= case.onset_step:
            yield from self._falls(case, steps, scale)
        yield from _formats(case, scale)
        since = case.onset_step - REFERENCE_STEPS
        lost = finite(case.timeline.values(_LOST, since, None))
        if len(lost):
            share = float(np.median(lost))
            yield Symptom(
                name="updates_lost_to_rounding",
                degree=graded(share, 0.5 * self.lost, 1.5 * self.lost),
                statement=f"rounding kept {share:.0%} of the weights from moving",
                readings=tuple(case.timeline.readings(_LOST, since, None)[-1:]),
            )

    def _falls(
        self, case: Case, steps: NDArray[np.int64], scale: NDArray[np.float64]
    ) -> Iterable[Symptom]:
        series = _SCALE if case.timeline.has(_SCALE) else _LOG2
        gaps, falls = np.diff(steps), -np.diff(scale)
        loss_steps = case.timeline.steps_of("loss/global")
        broken = loss_steps[~np.isfinite(case.timeline.values("loss/global"))]
        has_loss = len(loss_steps) > 0
        run = best = mild = calm = 0.0
        at = int(steps[0])
        for row, (gap, fall) in enumerate(zip(gaps.tolist(), falls.tolist(), strict=True), 1):
            near = steps[row] >= case.onset_step - 5
            run = run + fall if near and fall >= 0.5 * gap else 0.0
            if run > best:
                best, at = run, int(steps[row])
            if fall < 0:
                mild = 0.0
            elif fall > 0:
                now = steps[row]
                is_broken = np.any((broken > steps[row - 1]) & (broken <= now))
                mild = 0.0 if is_broken else mild + fall
            calm = max(calm, mild)
        ends = case.timeline.readings(series, int(steps[0]), int(steps[0]))
        ends += case.timeline.readings(series, int(steps[-1]), int(steps[-1]))
        said = f"the loss scale went from 2^{scale[0]:.3g} to 2^{scale[-1]:.3g}"
        yield Symptom(
            name="scale_falling_every_step",
            degree=graded(best, 1, self.every_step),
            statement=f"{said}, halved {best:.3g} times in a row up to step {at}"
            if best
            else f"{said}, never halved at step after step",
            readings=tuple(ends),
        )
        if has_loss:
            yield Symptom(
                name="scale_fell_with_finite_loss",
                degree=graded(calm, 1, 3),
                statement=f"{said}, halved {calm:.3g} times at finite losses",
                readings=tuple(ends),
            )


def _log2_scale(case: Case) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps and base-2 logarithms of the scale around the episode, both `[T]`; -1100 for 0."""
    since = case.onset_step - REFERENCE_STEPS
    series = _SCALE if case.timeline.has(_SCALE) else _LOG2
    steps, values = case.timeline.steps_of(series, since), case.timeline.values(series, since)
    if series == _SCALE:
        with np.errstate(all="ignore"):
            values = np.where(values >= 0, np.log2(np.maximum(values, 0.0)), np.nan)
    values = np.where(values == -np.inf, -1100.0, values)
    known = np.isfinite(values)
    return steps[known], values[known]


def _formats(case: Case, scale: NDArray[np.float64]) -> Iterable[Symptom]:
    told = case.facts.get("precision")
    words = told.lower() if isinstance(told, str) else ""
    words = _NUMBERS.get(words, words)
    fp16 = any(one in words for one in _FP16) and "bf16" not in words and "bfloat16" not in words
    low = fp16 or any(one in words for one in _LOW)
    full = not low and any(words.startswith(one) for one in _FULL)
    scaled = bool(len(scale)) and bool(np.any(scale != 0))
    scaler = scaled or case.facts.get("has_scaler") is True
    if scaler:
        fp16 = low = True
        said = "the loss is scaled, as under fp16" + (f" (precision: {told})" if words else "")
    elif low or full:
        said = f"the run computes in {told}"
    elif case.facts.get("has_scaler") is False:
        said = "no loss scaler is in use"  # fp16 without one is rare; bf16 needs none
        yield Symptom(name="runs_in_fp16", degree=0.0, statement=said)
        return
    else:
        return
    yield Symptom(name="runs_in_fp16", degree=float(fp16), statement=said.rstrip("."))
    yield Symptom(name="runs_in_low_precision", degree=float(low), statement=said.rstrip("."))
