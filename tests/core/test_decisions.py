"""Whatever happens to a run: its decisions replay, repeat nothing, and climb on, never back."""

import copy
import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.action import Plan
from foreshock.core.cause import Candidate, Diagnosis
from foreshock.core.incident import Incident, IncidentBook, Outcome
from foreshock.core.policy import Policy, Situation
from foreshock.core.preferences import order_of
from foreshock.core.recurrence import measure, same_place, windows
from foreshock.core.snapshot import Health, SnapshotRef

BATCH = 8
DATA_MAY_BE = {
    "data_batch": True,
    "unknown": True,
    "lr_too_high": False,
    "optimizer_state_corrupt": False,
}


@dataclass
class World:
    """A run of which only decisions are made: what alarms, recovers or dies, chance says."""

    chance: random.Random
    policy: Policy
    records: list[dict[str, Any]] = field(default_factory=list)
    book: IncidentBook = field(default_factory=IncidentBook)
    step: int = 0
    position: int = 0
    attempt: int = 1
    snapshots: list[SnapshotRef] = field(default_factory=list)
    passed: list[tuple[int, int]] = field(default_factory=list)  # (step, watermark after it)
    returned: dict[int, list[Incident]] = field(default_factory=dict)

    def write(self, kind: str, **fields: Any) -> None:
        stamp = {"attempt": self.attempt, "step": self.step}
        record = json.loads(json.dumps({"kind": kind, **stamp, **fields}))
        self.records.append(record)
        self.book.apply(record)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            while any(start <= self.position < stop for start, stop in self.aside()):
                self.position += 1
            self.position += BATCH
            self.passed.append((self.step, self.position))
            if self.step % 5 == 0:
                covered = any(one.covers(self.step) for one in self.book.incidents)
                concerns = ("not verified",) if covered else ()
                ref = SnapshotRef(
                    id=f"{self.step}",
                    attempt=self.attempt,
                    step=self.step,
                    position=self.position,
                    durable=False,
                    digest="",
                    health=Health(concerns=concerns),
                )
                self.snapshots = [*self.snapshots, ref][-self.chance.choice([4, 40]) :]

    def aside(self) -> list[tuple[int, int]]:
        return [
            (one["entry"][0], one["entry"][1])
            for one in self.records
            if one["kind"] == "quarantined" and not one["released"]
        ]

    def position_after(self, step: int) -> int:
        return max((at for one, at in self.passed if one <= step), default=self.position)

    def decide(self, *, again: bool = False) -> Plan | None:
        """An episode is judged, or a verification has failed."""
        incident = self.book.open
        if again:
            assert incident is not None
            diagnosis = Diagnosis.from_json(incident.diagnosis)
            position = incident.plans[-1].position
        else:
            diagnosis, position = self.diagnose(), self.position
        first = self.position_after(diagnosis.onset_step - 1)
        now = Situation(
            step=self.step,
            diagnosis=diagnosis,
            must_act=again or self.chance.random() < 0.3,
            only_gradients=self.chance.random() < 0.3,
            consecutive_skips=self.chance.choice([0, 0, 2, 9]),
            handled_by_scaler=False,
            gradient_limit=self.chance.choice([None, 3.0]),
            incident=incident,
            snapshots=self.snapshots,
            position=position,
            num_rollbacks=self.book.num_rollbacks,
            lag_steps=1,
            earlier=[one for one in self.book.incidents if one is not incident],
            window=(first, position) if first < position else None,
            num_samples=1 << 20,
        )
        before = copy.deepcopy(self.book.incidents)
        plan = self.policy.decide(now)
        assert self.policy.decide(now) == plan
        assert self.book.incidents == before
        if plan is not None:
            self.check(plan, now)
            self.carry_out(plan, now, diagnosis)
        return plan

    def diagnose(self) -> Diagnosis:
        onset = max(1, self.step - self.chance.randint(0, 9))
        shares = sorted((self.chance.random() for _ in DATA_MAY_BE), reverse=True)
        names = self.chance.sample(sorted(DATA_MAY_BE), len(DATA_MAY_BE))
        return Diagnosis(
            onset_step=onset,
            alarm_step=self.chance.randint(onset, self.step),
            loss_moved_step=None,
            first_mover="loss/global",
            candidates=tuple(
                Candidate(
                    cause=name,
                    probability=share / sum(shares),
                    evidence=(),
                    data_may_be_at_fault=DATA_MAY_BE[name],
                    settled_by="x",
                )
                for name, share in zip(names, shares, strict=True)
            ),
            path=(),
        )

    def check(self, plan: Plan, now: Situation) -> None:
        """What the policy promises, each time."""
        opened = now.incident.id if now.incident is not None else len(self.book.incidents) + 1
        found = same_place(now, self.policy.settle_steps)
        told = self.returned.setdefault(opened, found)
        assert [one.id for one in told if one.id not in {o.id for o in found}] == []
        failed = [record for one in found for record in one.plans] + list(now.tried)
        if plan.rung != "halt":
            done = {measure(record.plan.rung, record.plan.actions) for record in failed}
            assert measure(plan.rung, plan.actions) not in done
            order = order_of(
                self.policy.preferences.get(now.diagnosis.top.cause, ()), self.policy.ladder
            )
            rungs = {record.plan.rung for one in found for record in one.plans}
            used = [order.index(name) for name in rungs if name in order]
            assert plan.rung not in rungs
            assert order.index(plan.rung) > max(used, default=-1)
        names = [call.name for call in plan.actions]
        assert ("rollback" in names) == (plan.target_step is not None)
        if plan.target_step is not None:
            assert plan.target_step < now.onset_step
            chosen = next(one for one in self.snapshots if one.step == plan.target_step)
            assert chosen.health.healthy
        for call in plan.actions:
            if call.name == "quarantine":
                assert names.index("quarantine") < names.index("rollback")
                start, stop = call.arguments["start"], call.arguments["stop"]
                assert chosen.position <= start < now.position <= stop
                span = windows(failed)
                ahead = max(b for _, b in span) - min(a for a, _ in span) if span else 0
                assert stop - now.position <= self.policy.lookahead * ahead

    def carry_out(self, plan: Plan, now: Situation, diagnosis: Diagnosis) -> None:
        number = now.incident.id if now.incident is not None else len(self.book.incidents) + 1
        self.write(
            "plan", incident=number, plan_id=self.book.num_plans + 1, position=now.position,
            window=now.window, plan=plan.to_json(), diagnosis=diagnosis.to_json(), alarms=[],
            last_alarm_step=self.step,
        )  # fmt: skip
        unfinished = self.book.unfinished_plan
        assert unfinished is not None and unfinished.plan == plan
        for call in plan.actions:
            if self.chance.random() < 0.2:
                self.replay()  # the process died here; nothing of the plan is forgotten
                assert self.book.unfinished_plan is not None
            if call.name == "quarantine":
                window = [call.arguments["start"], call.arguments["stop"]]
                self.write("quarantined", entry=window, released=self.chance.random() < 0.4)
            if call.name == "rollback":
                self.go_back(call.arguments["step"])
            self.write("action_done", result="done")
        if plan.rung == "halt":
            self.write("incident_closed", outcome="halted", judged_step=self.step)
        self.write("plan_done")
        assert self.book.unfinished_plan is None

    def go_back(self, step: int) -> None:
        ref = next(one for one in self.snapshots if one.step == step)
        self.step, self.position = step, ref.position
        self.snapshots = [one for one in self.snapshots if one.step <= step]
        self.passed = [one for one in self.passed if one[0] <= step]
        self.attempt += 1
        self.write("attempt_started")

    def replay(self) -> None:
        """A new process folds the same records to the same book."""
        again = IncidentBook(self.records)
        assert again.incidents == self.book.incidents
        assert again.num_plans == self.book.num_plans
        assert again.judged_step == self.book.judged_step
        self.book = again

    def settle(self) -> None:
        """What becomes of an open incident, or of one that was believed to be over."""
        incident = self.book.incidents[-1] if self.book.incidents else None
        if incident is None:
            return
        if incident.outcome is None:  # verified beyond its last alarm
            ends = incident.last_alarm_step + self.policy.settle_steps
            self.train(max(0, min(ends - self.step, 60)))
            if self.step < ends:
                return
        result = {"passed": self.chance.random() < 0.6, "probes": [], "note": ""}
        if incident.outcome is None:
            self.write("verification", verification=result)
            if result["passed"]:
                self.write("incident_closed", outcome="recovered", judged_step=self.step)
            else:
                self.decide(again=True)
        elif incident.outcome is Outcome.RECOVERED and not result["passed"]:
            reopens = {**result, "again": True, "reopens": True}
            self.write("verification", verification=reopens)
            assert self.book.open is incident
            self.decide(again=True)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_any_history_keeps_what_the_policy_promises(seed: int) -> None:
    chance = random.Random(seed)
    policy = Policy(
        lookahead=chance.choice([0.0, 1.0, 2.0]), max_rollbacks_per_incident=chance.choice([2, 14])
    )
    world = World(chance, policy)
    world.train(chance.randint(1, 40))
    for _ in range(40):
        event = chance.choice(["train", "alarm", "alarm", "settle", "die"])
        if event == "train":
            world.train(chance.randint(1, 30))
        elif event == "alarm":
            world.decide()
        elif event == "settle":
            world.settle()
        else:
            world.replay()
        most = policy.max_rollbacks_per_incident
        assert all(len(one.rollbacks) <= most for one in world.book.incidents)
    world.replay()


def test_an_incident_that_nothing_cures_ends_in_a_halt() -> None:
    world = World(random.Random(1), Policy())
    world.train(60)
    for _ in range(60):
        world.train(1)
        plan = world.decide(again=world.book.open is not None)
        if plan is not None and plan.rung == "halt":
            return
    pytest.fail("it never ended")
