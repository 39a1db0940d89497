"""A number left the range of its format."""

import math
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.case import Case
from foreshock.core.cause import Cause, Evidence


@dataclass(frozen=True, kw_only=True)
class NumericOverflow(Cause):
    """NaN or Inf from arithmetic: fp16 range, a bad kernel, or a broken state.

    Born in the forward if the loss is non-finite, in the backward if only the
    gradient is.
    """

    name: ClassVar[str] = "numeric_overflow"
    predicts: ClassVar[str] = "NaN or Inf in loss or gradient; under fp16 the loss scale falls"
    contradicts: ClassVar[str] = "every value finite"
    settled_by: ClassVar[str] = "repeat the step with the forward in fp32"
    data_may_be_at_fault: ClassVar[bool] = True
    prior: ClassVar[float] = -1.0

    def weigh(self, case: Case) -> list[Evidence]:
        broken = [alarm for alarm in case.alarms if not math.isfinite(alarm.value)]
        if not broken:
            return [Evidence(statement="loss, gradients and weights are finite", weight=-4.0)]
        first = min(broken, key=lambda alarm: (alarm.step, alarm.signal != "loss"))
        born = {
            "loss": "born in the forward",
            "grad_norm": "born in the backward: the loss was finite",
            "param_norm": "already in the weights",
        }.get(first.signal, f"seen first in {first.signal}")
        evidence = [
            Evidence(
                statement=f"{first.series} is {first.value} at step {first.step}, {born}",
                weight=4.0,
                readings=tuple(case.timeline.readings(first.series, first.step, first.step)),
            )
        ]
        scale = case.timeline.readings("loss_scale/global", case.onset_step - 1, None)
        if len(scale) > 1 and scale[-1].value < scale[0].value:
            evidence.append(
                Evidence(
                    statement=f"the loss scale fell from {scale[0].value:g} to {scale[-1].value:g}",
                    weight=1.0,
                    readings=(scale[0], scale[-1]),
                )
            )
        return evidence
