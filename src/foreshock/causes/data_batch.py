"""The batches themselves."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.case import Case
from foreshock.core.cause import Cause, Evidence

_Z_MOVED = 6.0
_UPDATE_MOVED = 3.0
_FINDINGS_CAP = 4.0


@dataclass(frozen=True, kw_only=True)
class DataBatch(Cause):
    """Data unlike what came before: the loss on it is high before any update was wrong.

    The cause that people name first and prove least: without a finding in the samples
    themselves it stays weak, and only a replay from an earlier snapshot settles it.

    Reference: PaLM (batches innocent on replay); SIGNATURES of the project's sources.
    """

    name: ClassVar[str] = "data_batch"
    predicts: ClassVar[str] = "loss and gradient norm jump in the same step, lead 0; samples differ"
    contradicts: ClassVar[str] = "the update moved first; the samples look like those before"
    settled_by: ClassVar[str] = "the batch alone on an earlier clean snapshot (PaLM's control)"
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = -0.5

    def weigh(self, case: Case) -> list[Evidence]:
        loss = case.first_beyond("loss/global", z=_Z_MOVED)
        update = case.first_beyond("update_ratio/global", ratio=_UPDATE_MOVED)
        evidence: list[Evidence] = []
        # A step's loss is measured before its update: in one and the same step it came first.
        if loss is not None and (update is None or loss.step <= update.step):
            evidence.append(
                Evidence(
                    statement=f"the loss was {loss.value:.3g} (usually {loss.baseline:.3g}) at "
                    f"step {loss.step}, while every update before it was as usual",
                    weight=1.5,
                    readings=loss.readings,
                )
            )
        elif update is not None:
            evidence.append(
                Evidence(
                    statement=f"the update moved first: {update.ratio:.3g} times its median at "
                    f"step {update.step}, when the loss was as usual",
                    weight=-3.0,
                    readings=update.readings,
                )
            )
        return evidence + self._samples(case)

    def _samples(self, case: Case) -> list[Evidence]:
        if case.batch_findings is None:
            return []
        if not case.batch_findings:
            return [Evidence(statement="the samples look like those before them", weight=-2.0)]
        left = _FINDINGS_CAP
        evidence: list[Evidence] = []
        for finding in sorted(case.batch_findings, key=lambda one: -one.strength):
            weight = min(finding.strength, left)
            left -= weight
            evidence.append(Evidence(statement=finding.statement, weight=weight))
        return evidence
