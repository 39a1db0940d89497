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
        peak = case.peak("update_ratio/global")
        if peak is None:
            return []
        update = case.first_beyond("update_ratio/global", ratio=_MOVED)
        if update is None:
            return [
                Evidence(
                    statement=f"the update never exceeded {peak.ratio:.3g} times its median",
                    weight=-3.0,
                    readings=peak.readings,
                )
            ]
        at = [case.jump(f"{signal}/global", update.step) for signal in ("loss", "grad_norm")]
        first = [
            case.first_beyond(f"{signal}/global", z=_Z_USUAL) for signal in ("loss", "grad_norm")
        ]
        evidence: list[Evidence] = []
        earlier = [jump for jump in first if jump is not None and jump.step <= update.step]
        if not earlier and None not in at:
            evidence.append(
                Evidence(
                    statement=f"the update was {update.ratio:.3g} times its median at step "
                    f"{update.step}, while loss and gradient norm of that step were as usual",
                    weight=3.5,
                    readings=update.readings
                    + tuple(r for jump in at if jump for r in jump.readings),
                )
            )
        elif first[0] in earlier and first[0] is not None:
            evidence.append(
                Evidence(
                    statement=f"the loss moved with or before the update (step {first[0].step})",
                    weight=-2.5,
                    readings=first[0].readings,
                )
            )
        onset = case.onset_step
        rate = case.jump("lr/global", onset)
        if rate is not None and rate.ratio > _LR_SAME and case.rose_at_once("lr/global"):
            evidence.append(
                Evidence(
                    statement=f"the learning rate is {rate.ratio:.3g} times what it was",
                    weight=-2.0,
                    readings=rate.readings,
                )
            )
        return evidence
