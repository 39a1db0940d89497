"""An outlier without after-effect."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.case import Case
from foreshock.core.cause import Cause, Evidence

_BRIEF_STEPS = 2
_LONG_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Benign(Cause):
    """A hard batch, or noise: width, not height, tells it from a spike that matters.

    Reference: K2-65B report (benign spikes: high gradient norm, no lasting effect);
    BLOOM-176B's recovered within 30 steps.
    """

    name: ClassVar[str] = "benign"
    predicts: ClassVar[str] = "one or two steps out of range, then everything as before"
    contradicts: ClassVar[str] = "several alarmed steps, or a NaN"
    settled_by: ClassVar[str] = "watch on: held-out loss against the snapshot before"
    data_may_be_at_fault: ClassVar[bool] = False
    prior: ClassVar[float] = 0.0

    def weigh(self, case: Case) -> list[Evidence]:
        evidence: list[Evidence] = []
        alarmed = case.alarmed_steps
        last = case.alarms[-1]
        since = case.timeline.readings(last.series, last.step, None)
        if case.facts.get("harm"):
            statement = f"a probe found the model hurt: {case.facts['harm']}"
            return [Evidence(statement=statement, weight=-4.0)]
        if any(alarm.kind == "nonfinite" for alarm in case.alarms):
            evidence.append(Evidence(statement="a value is NaN or Inf", weight=-4.0))
        if len(alarmed) <= _BRIEF_STEPS and case.last_step > last.step:
            evidence.append(
                Evidence(
                    statement=f"only {len(alarmed)} alarmed step(s); in range again "
                    f"since step {last.step + 1}",
                    weight=2.5,
                    readings=tuple(since[:5]),
                )
            )
        elif case.last_step <= last.step:
            evidence.append(
                Evidence(
                    statement=f"still out of range at step {last.step}",
                    weight=-1.5,
                    readings=tuple(since[:1]),
                )
            )
        if len(alarmed) >= _LONG_STEPS:
            evidence.append(
                Evidence(statement=f"{len(alarmed)} alarmed steps: too wide", weight=-2.0)
            )
        return evidence
