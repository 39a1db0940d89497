"""What the model predicts with: log Z, output logits and the head's weights that grow."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from foreshock.core.case import Case
from foreshock.core.looking import graded, scopes_of
from foreshock.core.names import (
    LOG_Z,
    LOG_Z_ABSMAX,
    MAX_OUTPUT_LOGIT,
    PARAM_NORM,
    series_name,
    split_series,
)
from foreshock.core.scopes import role_of
from foreshock.core.standing import loss_moved, rise_of
from foreshock.core.symptom import Look, Symptom


@dataclass(frozen=True, kw_only=True)
class Output(Look):
    """Whether the prediction's scale drifted before the loss moved, or while it has not.

    What follows a loss that has exploded is no sign of anything: values count up to the step
    before the loss moved only, over up to 300 steps, and growth no faster than that of young
    models does not count (see `Rise`).

    `log_z_grew`: the magnitude of log Z (mean, or largest) grew by half, and by nats that matter.
    `output_logit_grew`: likewise the largest output logit.
    `head_grew`: the norm of the head's weights. Not of a tied head, which is the embedding.

    Usual: the drift of output logits is one cause of some thirty; a head also grows where its
    gradient or its rate is wrong (8 %, 8 %, 8 %).

    Args:
        grown: growth of a clear yes. A third of it beyond 1 is a clear no.
        nats: by which log Z rose, for a clear yes; a third is a clear no. In healthy small models
            it moves by less than 1 after the first 50 steps (measured).
        logit: largest output logit from which growth counts in full; at half of it none does.
            Healthy small models stay below 8 (measured).

    Reference: Wortsman et al. 2023, section 3.1.2, for the drift. The numbers: our choice,
    because of what is measured as said.
    """

    name: ClassVar[str] = "output"
    usual: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"log_z_grew": 0.08, "output_logit_grew": 0.08, "head_grew": 0.08}
    )
    grown: float = 1.5
    nats: float = 3.0
    logit: float = 20.0

    def look(self, case: Case) -> Iterator[Symptom]:
        moved = loss_moved(case)
        before = case.last_step + 1 if moved is None else moved
        until = "while the loss has not moved" if moved is None else "before the loss moved"
        names = [series_name(LOG_Z.name), series_name(LOG_Z_ABSMAX.name)]
        yield from self._grew(case, "log_z_grew", names, before, until)
        names = [series_name(MAX_OUTPUT_LOGIT.name)]
        yield from self._grew(case, "output_logit_grew", names, before, until)
        heads = [
            name
            for name in scopes_of(case, PARAM_NORM.name)
            if role_of(split_series(name)[1], case.facts) == "head"
        ]
        yield from self._grew(case, "head_grew", heads, before, until)

    def _grew(
        self, case: Case, symptom: str, names: list[str], before: int, until: str
    ) -> Iterator[Symptom]:
        no = 1 + (self.grown - 1) / 3
        found: list[Symptom] = []
        for name in names:
            rise = rise_of(case, name, before)
            if rise is None:
                continue
            signal = split_series(name)[0]
            counts = 1.0
            if signal == MAX_OUTPUT_LOGIT.name:
                counts = graded(rise.last, self.logit / 2, self.logit)
            elif signal != PARAM_NORM.name:
                counts = graded(rise.last - rise.first, self.nats / 3, self.nats)
            found.append(
                Symptom(
                    name=symptom,
                    degree=rise.degree(no, self.grown) * counts,
                    statement=f"the size of {name} went {rise.ratio:.3g}-fold, to "
                    f"{rise.last:.4g}, in {rise.num_steps} steps {until}",
                    readings=rise.readings,
                )
            )
        if found:
            yield max(found, key=lambda one: one.degree)
