"""The learning rate is too high for where the model stands."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foreshock.core.case import REFERENCE_STEPS, Case, RateJump
from foreshock.core.cause import Cause, Evidence

_RAISED = 1.5
_ABRUPT = 5.0
_GROWTH = 2.0
_NEAR_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class LRTooHigh(Cause):
    """Updates too large for the curvature: the rate was raised, or growth built up slowly.

    Reference: SIGNATURES ("LR / schedule lost: update ratio constant at the LR ratio,
    persists"); Wortsman et al. 2023 for slow growth at a high rate.
    """

    name: ClassVar[str] = "lr_too_high"
    predicts: ClassVar[str] = "the rate jumped, or gradient norm and update grew over many steps"
    contradicts: ClassVar[str] = "an abrupt jump at an unchanged or falling rate"
    settled_by: ClassVar[str] = "the same window at half the learning rate"
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = -1.0

    def weigh(self, case: Case) -> list[Evidence]:
        evidence: list[Evidence] = []
        onset = case.onset_step
        rate, jumped = case.jump("lr/global", onset), case.rate_jump
        if jumped is not None:
            evidence.append(self._jumped(jumped, onset))
        elif rate is not None and rate.ratio >= _RAISED:
            evidence.append(
                Evidence(
                    statement=f"the learning rate is {rate.ratio:.3g} times its median over the "
                    f"last {REFERENCE_STEPS} steps, after a steady rise",
                    weight=1.0,
                    readings=rate.readings,
                )
            )
        norms = case.timeline.values("grad_norm/global", onset - REFERENCE_STEPS, onset - 1)
        norms = norms[np.isfinite(norms)]
        if len(norms) >= REFERENCE_STEPS // 2:
            half = len(norms) // 2
            growth = float(np.median(norms[half:]) / max(np.median(norms[:half]), 1e-12))
            if growth >= _GROWTH:
                readings = case.timeline.readings("grad_norm/global", onset - half, onset - 1)
                evidence.append(
                    Evidence(
                        statement=f"the gradient norm had grown {growth:.3g} times before the "
                        "onset",
                        weight=2.0,
                        readings=(readings[0], readings[-1]),
                    )
                )
            elif jumped is None and rate is not None and rate.ratio < _RAISED:
                evidence.append(self._abrupt(case, growth))
        return evidence

    def _jumped(self, jump: RateJump, onset: int) -> Evidence:
        """The rate's own jump: strong at the onset, less so the longer before it."""
        near = onset - jump.step <= _NEAR_STEPS
        return Evidence(
            statement=f"the learning rate rose {jump.ratio:.3g} times in one step, from "
            f"{jump.before:.4g} to {jump.after:.4g} at step {jump.step}"
            + ("" if near else f", {onset - jump.step} steps before the onset"),
            weight=3.0 if near else 1.5,
            readings=jump.readings,
        )

    def _abrupt(self, case: Case, growth: float) -> Evidence:
        peak = case.peak("grad_norm/global")
        jumped = peak is not None and peak.ratio >= _ABRUPT
        return Evidence(
            statement=f"the learning rate had not been raised, and the gradient norm was level "
            f"(x{growth:.3g}) up to the onset",
            weight=-2.0 if jumped else -1.5,
            readings=peak.readings if peak is not None else (),
        )
