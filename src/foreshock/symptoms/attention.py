"""Attention: logits out of range, growth before the loss, attention that sees one key only."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from foreshock.core.case import REFERENCE_STEPS, Case
from foreshock.core.looking import graded, past_of, scopes_of
from foreshock.core.names import ATTENTION_ENTROPY, GLOBAL, MAX_ATTENTION_LOGIT, split_series
from foreshock.core.standing import Rise, finite_in, loss_moved, reading_at, rise_of
from foreshock.core.symptom import Look, Symptom

_ENTROPY_STEPS = 500
"""How far back an entropy's past goes: it is measured every 50 steps."""
_ENTROPY_LEAST = 3


@dataclass(frozen=True, kw_only=True)
class Attention(Look):
    """What attention logits and entropies tell.

    `attention_logit_high`: the largest logit since 50 steps before the onset is 100 or more.
    `attention_logit_grew_first`: it doubled before the loss moved, and stands where it matters.
    `attention_entropy_fell`: in some layer far below all that it was.

    Usual: growing logits are one cause of some thirty, and are also met where the rate is too
    high, or where a model that breaks for another reason takes them along (12 % above the
    limit, 6 % growing first). The entropy falls with them, and in every model that still learns
    to attend (10 %).

    Args:
        high: logit of a clear yes. Half of it is a clear no.
        grown: by how many times, for a clear yes. 1.5 is a clear no.
        matters: logit from which growth counts in full. Healthy small models grow from 4 to 25
            in their first 300 steps (measured), and nothing comes of it: below `idle` growth
            does not count.
        idle: see `matters`.
        fallen: share of the lowest of its past that is a clear yes; half as much again is a clear
            no, as a healthy model loses four tenths in 50 steps while it learns to attend
            (measured).

    Reference: Wortsman et al. 2023, section 3.1.1, and Kimi K2 2025, for a limit of 100. The
    other numbers: our choice, because of what is measured as said.
    """

    name: ClassVar[str] = "attention"
    usual: ClassVar[Mapping[str, float]] = MappingProxyType(
        {
            "attention_logit_high": 0.12,
            "attention_logit_grew_first": 0.06,
            "attention_entropy_fell": 0.10,
        }
    )
    high: float = 100.0
    grown: float = 2.0
    matters: float = 80.0
    idle: float = 30.0
    fallen: float = 0.4

    def look(self, case: Case) -> Iterator[Symptom]:
        layers = [one for one in scopes_of(case, MAX_ATTENTION_LOGIT.name) if ".heads." not in one]
        yield from self._high(case, layers)
        yield from self._grew(case, layers)
        yield from self._entropy(case)

    def _high(self, case: Case, layers: list[str]) -> Iterator[Symptom]:
        found: list[tuple[float, int, str]] = []
        for name in layers:
            values = case.timeline.values(name, case.onset_step - REFERENCE_STEPS, None)
            steps = case.timeline.steps_of(name, case.onset_step - REFERENCE_STEPS, None)
            known = ~np.isnan(values)
            if known.any():
                best = int(np.argmax(np.where(known, values, -np.inf)))
                found.append((float(values[best]), int(steps[best]), name))
        if not found:
            return
        # Of equals the layer: it says more than the whole.
        value, step, name = max(found, key=lambda one: (one[0], split_series(one[2])[1] != GLOBAL))
        yield Symptom(
            name="attention_logit_high",
            degree=graded(math.log(max(value, 1e-9)), math.log(self.high / 2), math.log(self.high)),
            statement=f"the largest attention logit was {value:.4g}{_where(name)} at step {step}",
            readings=reading_at(case, name, step),
        )

    def _grew(self, case: Case, layers: list[str]) -> Iterator[Symptom]:
        moved = loss_moved(case)
        before = case.last_step + 1 if moved is None else moved
        rises = [(name, rise) for name in layers if (rise := rise_of(case, name, before))]
        if not rises:
            return
        name, rise = max(rises, key=lambda one: (self._degree(one[1]), one[1].ratio))
        until = "and the loss had not moved" if moved is None else "before the loss moved"
        yield Symptom(
            name="attention_logit_grew_first",
            degree=self._degree(rise),
            statement=f"the largest attention logit{_where(name)} went {rise.ratio:.3g}-fold, to "
            f"{rise.last:.3g}, in the {rise.num_steps} steps {until}",
            readings=rise.readings,
        )

    def _degree(self, rise: Rise) -> float:
        level = graded(math.log(max(rise.last, 1e-9)), math.log(self.idle), math.log(self.matters))
        return rise.degree(1 + (self.grown - 1) / 2, self.grown) * level

    def _entropy(self, case: Case) -> Iterator[Symptom]:
        lowest: tuple[float, str, int, float, float] | None = None
        for name in scopes_of(case, ATTENTION_ENTROPY.name):
            steps, values = finite_in(case, name, case.onset_step - REFERENCE_STEPS)
            if not len(steps):
                continue
            past = past_of(
                case,
                name,
                before=int(steps[0]),
                reach_steps=_ENTROPY_STEPS,
                least=_ENTROPY_LEAST,
            )
            if past is None:
                continue
            _, before = finite_in(case, name, int(past.steps[0]), int(past.steps[-1]))
            usual = float(before.min())
            if usual <= 0:
                continue
            at = int(np.argmin(values))
            value = float(values[at])
            ratio = value / usual
            if lowest is None or ratio < lowest[0]:
                lowest = ratio, name, int(steps[at]), value, usual
        if lowest is None:
            return
        ratio, name, step, value, baseline = lowest
        yield Symptom(
            name="attention_entropy_fell",
            degree=graded(ratio, 1.5 * self.fallen, self.fallen),
            statement=f"the entropy of attention{_where(name)} was {value:.3g} nats at step "
            f"{step}, before at least {baseline:.3g}",
            readings=reading_at(case, name, step),
        )


def _where(series: str) -> str:
    scope = split_series(series)[1]
    return "" if scope == GLOBAL else f" in {scope}"
