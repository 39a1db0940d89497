"""Ranks that do not hold, compute or reduce what they should."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from foreshock.core.case import Case
from foreshock.core.looking import graded, past_of
from foreshock.core.names import (
    LOSS,
    LOSS_SPREAD,
    NUM_CHANGED_SHARDS,
    NUM_DESYNCED,
    series_name,
)
from foreshock.core.standing import finite_in, reading_at
from foreshock.core.symptom import Look, Symptom

_REPLICAS: Final = re.compile(
    r"differs? from the other \d+ replicas|two replicas cannot tell|no majority among \d+ replicas"
)
_SHARDS: Final = re.compile(r"changed on rank \d+ between two steps")
_BY_NO_WRITE: Final = "no write to it was counted"
_CANARY: Final = re.compile(
    r"rank \d+ differs from the other \d+ in (\d+ of \d+ gradients|its loss)"
    r"|\d+ of \d+ (gradients|losses) differ over ranks"
)
_REDUCED: Final = re.compile(r"\b(?:all_reduce|reduce_scatter|reduce|all_to_all) in (\w+)")
_LOW: Final = re.compile(r"bfloat16|float16|float8|float4|int8")
_BETWEEN_CHECKS: Final = 200
"""Steps before the onset from which on what was found counts: replicas and shards are compared
every 100 steps, so that what a check found may have done its harm before it, or after."""
_WRITTEN: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Ranks(Look):
    """What the comparison of ranks found, since 200 steps before the onset.

    `replicas_differ`, `shards_changed`: as their checks said, in words or as a number above 0;
    no, where a check since the onset found nothing. A shard that an operation has written to
    counts half: a program may do that. `canary_differs`: as the canary said; when it is silent,
    whether it ran is not known, and nothing is told. `reduces_in_low_precision`: as seen in the
    collectives (`ReductionWatch`), or as the fact "reduction_dtype" says.
    `rank_spread_high`: the losses of ranks lie further apart than usual, and by more than the
    mean moved, as where one rank is off. Where all ranks move together it is no.

    Usual: two causes of some thirty are of ranks (3 % each; spread 10 %, since a hard batch may
    lie on one rank alone). Many reduce in bf16 on purpose (20 %).

    Args:
        spread: of a usual one, for a clear yes; half of it is a clear no. Our choice: over ranks
            the range of a batch's noise varies by some tens of percent.
        z: robust deviations, likewise.
    """

    name: ClassVar[str] = "ranks"
    usual: ClassVar[Mapping[str, float]] = MappingProxyType(
        {
            "replicas_differ": 0.01,
            "shards_changed": 0.01,
            "canary_differs": 0.03,
            "rank_spread_high": 0.10,
            "reduces_in_low_precision": 0.20,
        }
    )
    spread: float = 3.0
    z: float = 8.0

    def look(self, case: Case) -> Iterator[Symptom]:
        yield from self._checked(
            case,
            "replicas_differ",
            _REPLICAS,
            NUM_DESYNCED.name,
            "parameters whose replicas differ",
        )
        yield from self._checked(
            case, "shards_changed", _SHARDS, NUM_CHANGED_SHARDS.name, "shards that changed"
        )
        if canary := _found(case, _CANARY):
            yield Symptom(name="canary_differs", degree=1.0, statement=canary)
        yield from self._spread(case)
        yield from _reduces(case)

    def _checked(
        self, case: Case, symptom: str, wording: re.Pattern[str], signal: str, what: str
    ) -> Iterator[Symptom]:
        series = series_name(signal)
        steps, values = finite_in(case, series, case.onset_step - _BETWEEN_CHECKS)
        wrong = steps[values > 0]
        readings = reading_at(case, series, wrong[0]) if len(wrong) else ()
        said = _found(case, wording)
        if said:
            is_written = symptom == "shards_changed" and _BY_NO_WRITE not in said
            degree = _WRITTEN if is_written else 1.0
            yield Symptom(name=symptom, degree=degree, statement=said, readings=readings)
        elif len(wrong):
            number = int(values[values > 0][0])
            statement = f"{number} {what} at step {int(wrong[0])}"
            yield Symptom(name=symptom, degree=1.0, statement=statement, readings=readings)
        elif len(steps) and steps[-1] >= case.onset_step:
            statement = f"no {what}, by the check at step {int(steps[-1])}"
            checked = reading_at(case, series, steps[-1])
            yield Symptom(name=symptom, degree=0.0, statement=statement, readings=checked)

    def _spread(self, case: Case) -> Iterator[Symptom]:
        series, loss = series_name(LOSS_SPREAD.name), series_name(LOSS.name)
        past, usual_loss = past_of(case, series), past_of(case, loss)
        steps, values = finite_in(case, series, case.onset_step)
        if past is None or past.median <= 0 or not len(steps):
            return
        at = int(np.argmax(values))
        step, value = int(steps[at]), float(values[at])
        degree = min(
            graded(value / past.median, self.spread / 2, self.spread),
            graded(past.z_of(value), self.z / 2, self.z),
        )
        _, moved = finite_in(case, loss, step, step)
        if usual_loss is not None and len(moved):
            rise = abs(float(moved[0]) - usual_loss.median)
            if rise > 2 * usual_loss.spread:
                degree = min(degree, graded((value - past.median) / rise, 1.0, 2.0))
        yield Symptom(
            name="rank_spread_high",
            degree=degree,
            statement=f"the losses of ranks lay at most {value:.3g} apart (step {step}), usually "
            f"{past.median:.3g}",
            readings=reading_at(case, series, step) + reading_at(case, loss, step),
        )


def _found(case: Case, wording: re.Pattern[str]) -> str:
    """The first finding of that wording that may have to do with the episode; "" if none."""
    first = case.onset_step - _BETWEEN_CHECKS
    for step, said in case.findings:
        if step >= first and wording.search(said):
            return said if said.startswith("step ") else f"step {step}: {said}"
    return ""


def _reduces(case: Case) -> Iterator[Symptom]:
    told = [found for _, said in case.findings if (found := _REDUCED.findall(said))]
    dtypes = list(dict.fromkeys(told[-1])) if told else []
    if not dtypes and (fact := case.facts.get("reduction_dtype")):
        dtypes = [str(fact).removeprefix("torch.")]
    if dtypes:
        is_low = any(_LOW.fullmatch(one) or one.startswith("float8") for one in dtypes)
        yield Symptom(
            name="reduces_in_low_precision",
            degree=float(is_low),
            statement=f"gradients are reduced in {' and '.join(dtypes)}",
        )
