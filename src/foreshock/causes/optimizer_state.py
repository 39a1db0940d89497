"""The optimizer's state is damaged, or does not match the parameters."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.case import Case
from foreshock.core.cause import Cause, Evidence

_MOVED = 3.0
_Z_USUAL = 6.0
_LR_SAME = 1.2


@dataclass(frozen=True, kw_only=True)
class OptimizerState(Cause):
    """A wrong update from a right gradient: moments lost, scaled or corrupted.

    In the step of the fault, loss and gradient norm are as usual in every variant; only
    the update is not. The loss follows one to six steps later.

    Reference: SIGNATURES experiment 8 (v scaled by 1e-4: update ratio 22 times, loss
    and gradient norm unchanged in that step).
    """

    name: ClassVar[str] = "optimizer_state"
    predicts: ClassVar[str] = "update ratio jumps while loss and gradient norm are as usual"
    contradicts: ClassVar[str] = "loss or gradient norm moved first; the learning rate changed"
    settled_by: ClassVar[str] = "the same step with fresh or repaired moments"
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -0.5

    def weigh(self, case: Case) -> list[Evidence]:
        onset = case.onset_step
        update = case.jump("update_ratio/global", onset)
        peak = case.peak("update_ratio/global")
        if update is None or peak is None:
            return []
        if peak.ratio < _MOVED:
            return [
                Evidence(
                    statement=f"the update never exceeded {peak.ratio:.3g} times its median",
                    weight=-3.0,
                    readings=peak.readings,
                )
            ]
        loss = case.jump("loss/global", onset)
        gradient = case.jump("grad_norm/global", onset)
        evidence: list[Evidence] = []
        quiet = [jump for jump in (loss, gradient) if jump is not None and jump.z < _Z_USUAL]
        if update.ratio >= _MOVED and loss in quiet and gradient in quiet:
            evidence.append(
                Evidence(
                    statement=f"the update was {update.ratio:.3g} times its median at step "
                    f"{onset}, while loss and gradient norm of that step were as usual",
                    weight=3.5,
                    readings=update.readings + tuple(r for jump in quiet for r in jump.readings),
                )
            )
        elif loss is not None and loss.z >= _Z_USUAL:
            evidence.append(
                Evidence(
                    statement=f"the loss moved with or before the update (step {onset})",
                    weight=-2.5,
                    readings=loss.readings,
                )
            )
        rate = case.jump("lr/global", onset)
        if rate is not None and rate.ratio > _LR_SAME:
            evidence.append(
                Evidence(
                    statement=f"the learning rate is {rate.ratio:.3g} times what it was",
                    weight=-2.0,
                    readings=rate.readings,
                )
            )
        return evidence
