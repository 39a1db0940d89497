"""What came of the demo: each fault against what the Guard made of it, in figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foreshock.core.incident import Incident, Outcome
from foreshock.core.reading import json_number
from foreshock.guard import Guard
from foreshock.lab.demo import Trace
from foreshock.lab.demo_faults import DemoFaults

_SETTLED_MEASUREMENTS = 5
_NOISE_SD = 3.0


@dataclass(kw_only=True)
class DemoResult:
    """The demo in figures; losses are held-out losses in nats.

    Attributes:
        faults: what was done to the run; None for a healthy one.
        traces: by name.
        incidents: one dict each, see `incident_json`.
        noise: standard deviation of the held-out loss between healthy runs that saw other
            data, from the forks.
        finished: whether the guarded run reached its last step.
        rules: whether the online data rules were on, so that the shard may never get in.
        num_refused: samples that they refused.
    """

    faults: DemoFaults | None
    traces: dict[str, Trace]
    incidents: list[dict[str, Any]] = field(default_factory=list)
    noise: float = math.nan
    finished: bool = True
    rules: bool = False
    num_refused: int = 0

    @property
    def passed(self) -> bool:
        """Whether the demo shows what it promises."""
        if self.faults is None:
            return self.finished and not self.incidents
        causes = [incident["cause"] for incident in self.incidents]
        expected = [self.faults.shard.cause, self.faults.moments.cause]
        caught = causes == expected or (self.rules and causes == expected[1:])
        return self.finished and caught and all(one["verified"] for one in self.incidents)

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        recovered = [incident["steps_to_recover"] for incident in self.incidents]
        known = [steps for steps in recovered if steps is not None]
        return {
            "faults": self.faults.to_json() if self.faults is not None else None,
            "passed": self.passed,
            "incidents": self.incidents,
            "excess_loss_guarded": self._excess("guarded"),
            "excess_loss_unguarded": self._excess("unguarded"),
            "samples_refused_by_rules": self.num_refused,
            "steps_to_recover": sum(known) if known else None,
            "held_out_noise": json_number(self.noise),
            "curves": {
                name: [[executed, round(value, 5)] for executed, _, value in trace.held_out]
                for name, trace in self.traces.items()
            },
        }

    def _excess(self, name: str) -> float | None:
        """Area between a run and the untouched twin, in nats times executed steps."""
        if name not in self.traces or "untouched twin" not in self.traces:
            return None
        return round(excess_area(self.traces[name], self.traces["untouched twin"]), 3)


def excess_area(run: Trace, twin: Trace) -> float:
    """Area by which a run's held-out loss stands above its twin's, at equal cost.

    Compared at equal numbers of *executed* steps, so that steps which were undone count
    against the run; the twin's smooth curve is interpolated. Trapezoids between
    measurements; where the run is below, nothing is taken off.
    """
    executed = np.array([at for at, _, _ in run.held_out], dtype=float)
    mine = np.array([value for _, _, value in run.held_out])
    twins_executed = [at for at, _, _ in twin.held_out]
    level = np.interp(executed, twins_executed, [value for _, _, value in twin.held_out])
    shared = executed <= twins_executed[-1]
    above = np.maximum(mine - level, 0.0)[shared]
    return float(np.sum(np.diff(executed[shared]) * (above[1:] + above[:-1]) / 2))


def incident_json(
    incident: Incident,
    guard_records: Sequence[Mapping[str, Any]],
    run: Trace,
    twin: Trace,
    noise: float,
) -> dict[str, Any]:
    """One incident with its proof.

    `verified` means: the restored state had the digest it was captured with; the Guard's own
    probes passed; and after the alarmed step had been passed again, the held-out loss equals
    the twin's at the same number of clean updates, within three standard deviations of the
    difference between healthy runs.
    """
    numbers = {record.id for record in incident.plans}
    plans = [record for record in incident.plans if record.plan.target_step is not None]
    quarantined = [
        record
        for record in guard_records
        if record["kind"] == "quarantined" and int(record["key"][4:].split("/")[0]) in numbers
    ]
    restored = [
        record["result"].endswith("True")
        for record in guard_records
        if record["kind"] == "action_done"
        and record["plan_id"] in numbers
        and record["action"] == "rollback"
    ]
    difference = _difference(incident, run, twin)
    equal = difference is not None and abs(difference) <= _NOISE_SD * noise
    probed = bool(incident.verification and incident.verification["passed"])
    return {
        "cause": incident.cause,
        "onset_step": incident.onset_step,
        "alarm_step": incident.alarm_step,
        "loss_moved_step": incident.loss_moved_step,
        "first_mover": incident.first_mover,
        "action": "+".join(call.name for call in incident.plans[-1].plan.actions),
        "num_rollbacks": len(plans),
        "rolled_back_to": plans[-1].plan.target_step if plans else None,
        "quarantined_samples": _num_quarantined(quarantined),
        "digest_equal": bool(restored) and all(restored),
        "probes_passed": probed,
        "difference_to_twin": round(difference, 5) if difference is not None else None,
        "steps_to_recover": _steps_to_recover(incident, run),
        "verified": bool(
            incident.outcome is Outcome.RECOVERED
            and restored
            and all(restored)
            and probed
            and equal
        ),
    }


def _num_quarantined(records: Sequence[Mapping[str, Any]]) -> int:
    """Distinct stream positions that an incident's windows cover."""
    covered: set[int] = set()
    for record in records:
        covered.update(range(*record["entry"]["window"]))
    return len(covered)


def _difference(incident: Incident, run: Trace, twin: Trace) -> float | None:
    """Mean difference to the twin over the first measurements after the alarmed step."""
    mine, level = run.by_step(), twin.by_step()
    steps = sorted(step for step in mine if step > incident.last_alarm_step and step in level)
    if not steps:
        return None
    return float(np.mean([mine[step] - level[step] for step in steps[:_SETTLED_MEASUREMENTS]]))


def _steps_to_recover(incident: Incident, run: Trace) -> int | None:
    """Executed steps from the onset until the alarmed step had been passed for good."""
    first = next((n for n, step in enumerate(run.steps, 1) if step == incident.onset_step), None)
    passed = [n for n, step in enumerate(run.steps, 1) if step == incident.alarm_step]
    if first is None or not passed or incident.outcome is not Outcome.RECOVERED:
        return None
    return passed[-1] - first


def incidents_of(guard: Guard, run: Trace, twin: Trace, noise: float) -> list[dict[str, Any]]:
    """Every incident of a guarded run, with its proof."""
    records = guard.records
    return [incident_json(one, records, run, twin, noise) for one in guard.book.incidents]
