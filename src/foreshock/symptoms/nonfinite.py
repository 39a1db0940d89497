"""Whether a value is NaN or Inf, and where in a step the first one came up."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.case import Case
from foreshock.core.looking import first_broken, scopes_of
from foreshock.core.names import PARAM_NORM
from foreshock.core.reading import Reading
from foreshock.core.symptom import Look, Symptom

_LOSS, _GRADIENT, _UPDATE = "loss/global", "grad_norm/global", "update_ratio/global"
_NEVER = 1 << 62


@dataclass(frozen=True, kw_only=True)
class NonFinite(Look):
    """NaN or Inf in loss, gradient norm, update or a weight norm, and where it was born.

    In the forward: the loss is the first, the step before it being finite. In the backward: the
    gradient norm is, at a finite loss. In the weights: an update or a weight norm is, after a
    finite loss and gradient of the same step; a weight norm is often read later than the next
    loss, so that then nobody knows. Where a log prints every tenth step, a loss and a gradient
    norm that break in the same row tell nothing of their order either.

    Where it was born is asked only if a value is non-finite; its `usual` are shares of these.
    Gradients that overflow in steps that the loss scaler skips count only if they alarm.

    Usual: of public post-mortems one in five speaks of NaN. Most are first seen in the loss
    (the forward runs first), a third in the gradient; broken weights, after a finite gradient,
    need a broken optimizer state or memory.
    """

    name: ClassVar[str] = "nonfinite"
    usual: ClassVar[Mapping[str, float]] = {
        "nonfinite": 0.2,
        "born_in_forward": 0.45,
        "born_in_backward": 0.45,
        "born_in_weights": 0.12,
    }

    def look(self, case: Case) -> Iterable[Symptom]:
        weights = list(scopes_of(case, PARAM_NORM.name))
        broken = {one: first_broken(case, one) for one in (_LOSS, _GRADIENT, _UPDATE, *weights)}
        first: dict[str, int] = {name: one for name, one in broken.items() if one is not None}
        alarmed = [one for one in case.alarms if not math.isfinite(one.value)]
        if not first and not alarmed:
            seen = case.timeline.readings(_LOSS, case.onset_step, None)
            seen += case.timeline.readings(_GRADIENT, case.onset_step, None)
            if seen:
                said = "loss, gradients and weights are finite"
                yield Symptom(name="nonfinite", degree=0.0, statement=said)
            return
        if not first:
            one = min(alarmed, key=lambda alarm: alarm.step)
            said = f"{one.series} is {one.value} at step {one.step}"
            yield Symptom(name="nonfinite", degree=1.0, statement=said)
            return
        series = min(first, key=lambda name: first[name])
        step = first[series]
        readings = tuple(case.timeline.readings(series, step, step))
        value = readings[0].value if readings else math.nan
        said = f"{series} is {value} at step {step}"
        yield Symptom(name="nonfinite", degree=1.0, statement=said, readings=readings)
        yield from _born(case, first, weights, (said, readings))


def _born(
    case: Case, first: dict[str, int], weights: list[str], told: tuple[str, tuple[Reading, ...]]
) -> Iterable[Symptom]:
    """Where the first one came up, if the readings tell."""
    loss, gradient = first.get(_LOSS, _NEVER), first.get(_GRADIENT, _NEVER)
    after = min((first[one] for one in (_UPDATE, *weights) if one in first), default=_NEVER)
    step = min(loss, gradient, after)
    place = None
    if gradient == step and loss > step and _is_finite(case, _LOSS, step):
        place = "backward"
    elif after == step and loss > step and gradient > step:
        if _is_finite(case, _LOSS, step) and _is_finite(case, _GRADIENT, step):
            place = "weights"
    elif loss == step and _follows(case, step):
        place = "forward"
    if place is None:
        return
    words = {
        "forward": "and the step before it was finite: born in the forward",
        "backward": "at a finite loss: born in the backward",
        "weights": "after a finite loss and gradient: born in the weights",
    }
    said = f"{told[0]}, {words[place]}"
    for one in words:
        yield Symptom(
            name=f"born_in_{one}",
            degree=float(one == place),
            statement=said,
            readings=told[1],
        )


def _is_finite(case: Case, series: str, step: int) -> bool:
    values = case.timeline.values(series, step, step)
    return len(values) > 0 and math.isfinite(values[0])


def _follows(case: Case, step: int) -> bool:
    """Whether the step before was read, so that a gradient cannot have broken in between."""
    if len(case.timeline.values(_LOSS, step - 1, step - 1)) == 0:
        return False
    gradient = case.timeline.values(_GRADIENT, step - 1, step - 1)
    return len(gradient) == 0 or math.isfinite(gradient[0])
