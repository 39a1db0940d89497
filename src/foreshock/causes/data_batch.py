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
        evidence: list[Evidence] = []
        onset = case.onset_step
        loss = case.jump("loss/global", onset)
        update_before = case.jump("update_ratio/global", onset - 1)
        if loss is not None and loss.z >= _Z_MOVED:
            clean = update_before is None or update_before.ratio < _UPDATE_MOVED
            if clean:
                evidence.append(
                    Evidence(
                        statement=f"the loss was {loss.value:.3g} (usually {loss.baseline:.3g}) "
                        f"in the first step out of range, while the updates before it were "
                        "as usual",
                        weight=1.5,
                        readings=loss.readings,
                    )
                )
        elif loss is not None:
            update = case.jump("update_ratio/global", onset)
            if update is not None and update.ratio >= _UPDATE_MOVED:
                evidence.append(
                    Evidence(
                        statement=f"the update moved first ({update.ratio:.3g} times its median) "
                        f"while the loss of that step was as usual ({loss.value:.3g})",
                        weight=-3.0,
                        readings=update.readings + loss.readings,
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
