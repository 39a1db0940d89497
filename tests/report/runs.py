"""Run directories written by hand, through the Journal and without torch."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foreshock.core.action import ActionCall, Plan
from foreshock.core.cause import Branch, Candidate, Diagnosis, Evidence
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.reading import Reading
from foreshock.durable import RealDisk
from foreshock.journal import Journal, RunView
from foreshock.report.summary import RunSummary, summarise

SERIES = (
    "loss/global",
    "grad_norm/global",
    "update_ratio/global",
    "activation_norm/norm",
    "lr/global",
)
NAN = math.nan


class Script:
    """Writes a run's story record by record."""

    def __init__(self, run_dir: Path, program: str = "train.py:program") -> None:
        self.now = 1.7e9
        identity = {"foreshock": "0.1.0", "torch": "2.13.0", "program": program, "settings": {}}
        self.journal = Journal.create(RealDisk(), run_dir, identity, self._clock)
        self.run_dir = run_dir
        self.attempt = 0
        self.step = 0
        self.num_plans = 0
        self.rng = np.random.default_rng(3)

    def _clock(self) -> float:
        self.now += 1.0
        return self.now

    def write(self, kind: str, **fields: Any) -> None:
        stamp = {"attempt": self.attempt, "step": self.step}
        self.journal.write(kind, **{**stamp, **fields})

    def start(self, step: int = 0, series: Sequence[str] = SERIES) -> None:
        self.attempt, self.step = self.attempt + 1, step
        self.write("attempt_started")
        self.journal.open_readings(self.attempt, series)

    def train(self, to_step: int, special: Mapping[int, Sequence[float]] | None = None) -> None:
        for step in range(self.step + 1, to_step + 1):
            self.step = step
            noise = self.rng.normal(size=4)
            loss = 2 + 6 * math.exp(-step / 150) + 0.05 * noise[0]
            norm = math.exp(0.15 * noise[1])
            row = [loss, norm, 2e-3 * math.exp(0.1 * noise[2]), 1 + 0.02 * noise[3], 3e-4]
            values = (special or {}).get(step, row)
            self.journal.append_reading(step, 1, np.array(values, np.float32))

    def alarm(self, series: str, step: int, value: float, onset: int | None = None) -> None:
        self.write("alarm", alarm=alarm_json(series, step, value, onset), step=step)

    def plan(
        self,
        diagnosis: Diagnosis,
        *,
        incident: int = 1,
        rung: str = "rollback",
        why: str = "back to the newest healthy state before the onset",
        back_to: int | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        self.num_plans += 1
        actions = []
        if window is not None:
            arguments = {"start": window[0], "stop": window[1], "reason": "data_batch suspected"}
            actions.append(ActionCall(name="quarantine", arguments=arguments))
        if back_to is not None:
            arguments = {"snapshot_id": f"{back_to:08d}-a00001", "step": back_to}
            actions.append(ActionCall(name="rollback", arguments=arguments))
        if rung == "skip":
            actions.append(ActionCall(name="skip_update", arguments={"limit": 5.0}))
        if rung == "halt":
            actions.append(ActionCall(name="halt", arguments={"note": "see above"}))
        plan = Plan(rung=rung, why=why, actions=tuple(actions), target_step=back_to)
        alarms = [alarm_json(diagnosis.first_mover, diagnosis.alarm_step, 9.0)]
        self.write(
            "plan",
            incident=incident,
            plan_id=self.num_plans,
            position=16 * self.step,
            plan=plan.to_json(),
            diagnosis=diagnosis.to_json(),
            alarms=alarms,
            last_alarm_step=diagnosis.alarm_step,
        )

    def quarantine(self, start: int, stop: int) -> None:
        key = f"plan{self.num_plans}/0"
        entry = {"entry_id": key, "reason": "data_batch suspected", "ids": [], "rule": None}
        self.write("quarantined", key=key, entry={**entry, "window": [start, stop]})
        self.done("quarantine", f"{stop - start} samples set aside")

    def rollback(self, step: int) -> None:
        came_from = self.step
        self.start(step)
        self.done("rollback", f"back from step {came_from} to {step}; digest equal: True")

    def done(self, action: str, result: str) -> None:
        self.write("action_done", plan_id=self.num_plans, action=action, result=result)

    def plan_done(self) -> None:
        self.write("plan_done", plan_id=self.num_plans)

    def verify(self, *, passed: bool = True, after: float = 2.02, incident: int = 1) -> None:
        probe = {"probe": "held_out_loss", "before": 2.0, "after": after, "difference": after - 2}
        probes = [{**probe, "tolerance": 0.1, "passed": passed}]
        fields = {"passed": passed, "against": "00000100-a00001", "probes": probes, "note": ""}
        self.write("verification", incident=incident, verification=fields)

    def close_incident(self, outcome: str = "recovered", incident: int = 1) -> None:
        self.write("incident_closed", incident=incident, outcome=outcome, judged_step=self.step)

    def snapshot(self, concerns: Sequence[str] = ()) -> None:
        label = {"id": f"{self.step:08d}-a{self.attempt:05d}", "attempt": self.attempt}
        health = {"concerns": list(concerns), "figures": {}}
        label |= {"step": self.step, "position": 0, "durable": True, "digest": "d"}
        self.write("snapshot", snapshot={**label, "health": health})

    def finish(self) -> "Script":
        self.write("run_finished", digest="d")
        return self.close()

    def close(self) -> "Script":
        self.journal.close()
        return self


def alarm_json(series: str, step: int, value: float, onset: int | None = None) -> dict[str, Any]:
    return Alarm(
        kind=AlarmKind.SPIKE,
        detector="spike",
        series=series,
        step=step,
        onset_step=step if onset is None else onset,
        value=value,
        baseline=1.0,
        threshold=5.0,
    ).to_json()


def diagnosis(
    onset: int = 120,
    *,
    loss_moved: int | None = 121,
    first_mover: str = "update_ratio/global",
    cause: str = "optimizer_state_corrupt",
    statement: str = "the update was 9 times its median",
    value: float = 0.018,
) -> Diagnosis:
    reading = Reading(1, onset, *first_mover.split("/", 1), value)  # type: ignore[misc]
    facts = (
        Evidence(statement=statement, weight=3.0, readings=(reading,)),
        Evidence(statement="the gradient norm was level before", weight=-0.5),
    )
    against = (Evidence(statement="the samples look like those before them", weight=-2.0),)
    top = Candidate(
        cause=cause,
        probability=0.82,
        evidence=facts,
        data_may_be_at_fault=False,
        settled_by="the same step with fresh moments",
    )
    other = Candidate(
        cause="data_batch",
        probability=0.18,
        evidence=against,
        data_may_be_at_fault=True,
        settled_by="the batch alone on an earlier snapshot",
    )
    return Diagnosis(
        onset_step=onset,
        alarm_step=onset,
        loss_moved_step=loss_moved,
        first_mover=first_mover,
        candidates=(top, other),
        path=(Branch(question="Is anything NaN or Inf?", answer="no", readings=(reading,)),),
    )


def one_rollback(run_dir: Path) -> Script:
    """A run of 200 steps with one incident: at step 120, back to 100, verified at 131."""
    run = Script(run_dir)
    run.start()
    run.snapshot()
    run.train(100)
    run.snapshot()
    run.train(119)
    run.train(122, {120: [2.5, 3, 0.018, 1, 3e-4], 121: [9, 40, 0.01, 2, 3e-4]})
    run.alarm("update_ratio/global", 120, 0.018)
    run.plan(diagnosis(), back_to=100, window=(1600, 1952))
    run.quarantine(1600, 1952)
    run.rollback(100)
    run.plan_done()
    run.train(131)
    run.verify()
    run.close_incident()
    run.train(200)
    run.snapshot()
    return run.finish()


def same(first: int, last: int, row: Sequence[float]) -> dict[int, Sequence[float]]:
    """The same readings for every step from first to last."""
    return dict.fromkeys(range(first, last + 1), row)


def view(run_dir: Path) -> RunView:
    return Journal.read(RealDisk(), run_dir)


def summary(run_dir: Path) -> RunSummary:
    return summarise(view(run_dir))
