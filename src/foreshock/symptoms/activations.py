"""Activations that grew before the loss moved, or in the same step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from foreshock.core.case import Case
from foreshock.core.looking import graded, past_of, scopes_of
from foreshock.core.names import ACTIVATION_NORM, ACTIVATION_RMS
from foreshock.core.standing import finite_in, loss_moved, reading_at, rise_of
from foreshock.core.symptom import Look, Symptom


@dataclass(frozen=True, kw_only=True)
class Activations(Look):
    """Whether what the model computes with had grown by the step in which the loss moved.

    `activation_grew`: what enters the last norm, or a block's output, stands at twice its usual
    size in some step up to that in which the loss moved (in one step both are of one forward),
    or doubled slowly over up to 300 steps before it. What comes later follows the loss. Growth
    no faster than that of young models does not count (see `Rise`).

    Usual: overflow in fp16, drifting activations, broken weights and too high a rate all show
    it, batches and moments do not (20 %).

    Args:
        grown: growth of a clear yes. A third of it beyond 1 is a clear no.
        z: robust deviations that a single step must stand out by, likewise.

    Non-finite activations are left to those who look for them.

    Reference: OPT-175B log book (the last layer's activation norm rises before the loss scale
    falls). The numbers: our choice, because healthy sizes vary by a few percent (measured).
    """

    name: ClassVar[str] = "activations"
    usual: ClassVar[Mapping[str, float]] = MappingProxyType({"activation_grew": 0.20})
    grown: float = 2.0
    z: float = 10.0

    def look(self, case: Case) -> Iterator[Symptom]:
        moved = loss_moved(case)
        until = case.last_step if moved is None else moved
        for signal in (ACTIVATION_NORM.name, ACTIVATION_RMS.name):
            found = [one for name in scopes_of(case, signal) for one in self._of(case, name, until)]
            if found:
                yield max(found, key=lambda one: one.degree)
                return

    def _of(self, case: Case, name: str, until: int) -> Iterator[Symptom]:
        no = 1 + (self.grown - 1) / 3
        past = past_of(case, name)
        steps, values = finite_in(case, name, case.onset_step, until)
        if past is not None and past.median > 0 and len(steps):
            at = int(np.argmax(values))
            value, step = float(values[at]), int(steps[at])
            ratio = value / past.median
            yield Symptom(
                name="activation_grew",
                degree=min(
                    graded(ratio, no, self.grown), graded(past.z_of(value), 0.6 * self.z, self.z)
                ),
                statement=f"{name} was at most {value:.4g}, {ratio:.3g} times its median, from the "
                f"onset to step {until}",
                readings=reading_at(case, name, step),
            )
        rise = rise_of(case, name, until + 1)
        if rise is not None:
            yield Symptom(
                name="activation_grew",
                degree=rise.degree(no, self.grown),
                statement=f"{name} went {rise.ratio:.3g}-fold, to {rise.last:.4g}, in the "
                f"{rise.num_steps} steps up to step {until}",
                readings=rise.readings,
            )
