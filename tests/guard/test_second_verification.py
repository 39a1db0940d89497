"""A recovery is verified once more at ten times the distance; what falls late goes further back."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from foreshock.core.incident import Incident, Outcome
from foreshock.core.probe import Probe
from foreshock.recipes import Cadence
from foreshock.recovery import again_step
from tests.guard.programs import guarded, make, poisoned_stages, recipe, run, take_step


@dataclass(frozen=True, kw_only=True)
class Late(Probe):
    """Shows the model hurt once its recovery was believed, until it has gone back `cured` times."""

    name: ClassVar[str] = "late"
    guard: list[Any] = field(default_factory=list)
    cured: int = 2

    def measure(self, model):
        if not self.guard:  # asked by a resume that goes back while its Guard is being built
            return [0.0] * 4
        book = self.guard[0].book
        believed = bool(book.incidents) and book.incidents[-1].outcome is Outcome.RECOVERED
        backs = sum(len(one.rollbacks) for one in book.incidents)
        return [1.0 if believed and backs < self.cured else 0.0] * 4


@dataclass(frozen=True, kw_only=True)
class Early(Probe):
    """Shows the model hurt when a recovery is verified first, until it went back often enough."""

    name: ClassVar[str] = "early"
    guard: list[Any] = field(default_factory=list)
    cured: int = 2

    def measure(self, model):
        book, records = self.guard[0].book, self.guard[0].records
        backs = sum(len(one.rollbacks) for one in book.incidents)
        verifying = records[-1]["kind"] not in ("attempt_started", "quarantined")
        return [1.0 if backs and backs < self.cured and verifying else 0.0] * 4


def poisoned(tmp_path, *, cured, after=2400, **options):
    training = make(stages=poisoned_stages(480, 32, after), tracked=True)
    probe = Late(cured=cured)
    guard = guarded(training, tmp_path / "run", probes=[probe], **options)
    probe.guard.append(guard)
    return training, guard


def of(guard, kind):
    return [record for record in guard.records if record["kind"] == kind]


def again(guard):
    return [one for one in of(guard, "verification") if one["verification"].get("again")]


def test_a_recovery_that_lasts_is_verified_twice_and_no_more(tmp_path):
    training, guard = poisoned(tmp_path, cured=0)
    run(training, guard)
    (incident,) = guard.book.incidents
    assert incident.outcome is Outcome.RECOVERED
    target = incident.rollbacks[-1].plan.target_step
    (second,) = again(guard)
    assert second["step"] == target + 10 * (incident.last_alarm_step - target)
    assert second["verification"]["passed"] and "reopens" not in second["verification"]
    assert of(guard, "strengthen_data") == []


def test_a_capability_that_fell_late_sends_the_recovery_further(tmp_path):
    training, guard = poisoned(tmp_path, cured=2)
    run(training, guard)
    (incident,) = guard.book.incidents
    second = again(guard)[0]
    assert second["verification"]["passed"] is False and second["verification"]["reopens"] is True
    plans = [one for one in of(guard, "plan") if one["step"] >= second["step"]]
    assert plans[0]["incident"] == incident.id  # the same incident, which knows what was tried
    first, then = incident.rollbacks[:2]
    assert then.plan.target_step <= first.plan.target_step
    assert then.plan.actions != first.plan.actions
    assert incident.outcome is Outcome.RECOVERED


def windows(incident):
    calls = [call for record in incident.rollbacks for call in record.plan.actions]
    return [
        (call.arguments["start"], call.arguments["stop"])
        for call in calls
        if call.name == "quarantine"
    ]


@pytest.mark.parametrize("early", [False, True])
def test_what_trained_quietly_before_a_verification_failed_is_not_set_aside(tmp_path, early):
    """Not the data since: the window of the plan that failed, and as much again ahead of it."""
    training = make(stages=poisoned_stages(480, 32, 2400), tracked=True)
    probe = Early(cured=2) if early else Late(cured=2)
    guard = guarded(training, tmp_path / "run", probes=[probe])
    probe.guard.append(guard)
    run(training, guard)
    (incident,) = guard.book.incidents
    first, then = incident.rollbacks[:2]
    failed = next(one for one in of(guard, "verification") if not one["verification"]["passed"])
    assert then.step == failed["step"] and bool(failed["verification"].get("again")) is not early
    one, other = windows(incident)[:2]
    assert one[1] == first.position
    assert then.position - first.position <= 8  # one more step had alarmed
    assert other == (one[0], then.position + (one[1] - one[0]))
    assert 8 * failed["step"] > then.position + 64  # it had trained further


def test_the_second_verification_outlives_a_restart(tmp_path):
    training, guard = poisoned(tmp_path, cured=0)
    training.model.train()
    with guard:
        for batch in guard:
            take_step(training, guard, batch)
            if guard.book.incidents and guard.book.incidents[-1].outcome is Outcome.RECOVERED:
                break
    assert again(guard) == []
    fresh = make(stages=poisoned_stages(480, 32, 2400), tracked=True, seed=5)
    fresh.stream = make(stages=poisoned_stages(480, 32, 2400)).stream
    probe = Late(cured=0)
    resumed = guarded(fresh, tmp_path / "run", probes=[probe], resume=True)
    probe.guard.append(resumed)
    run(fresh, resumed)
    assert len(again(resumed)) == 1


@pytest.mark.slow
def test_where_nothing_older_is_left_data_is_advised_and_the_run_goes_on(tmp_path):
    cadence = Cadence(memory_steps=200, memory_keep=2, disk_steps=200)
    training, guard = poisoned(tmp_path, cured=99, after=7000, recipe=recipe(cadence=cadence))
    run(training, guard)
    (advice,) = of(guard, "strengthen_data")
    assert advice["capabilities"] == ["late"]
    assert advice["data"] == "data that exercises late"
    (second,) = again(guard)
    assert "reopens" not in second["verification"]
    assert guard.halted is None
    assert guard.book.incidents[0].outcome is Outcome.RECOVERED


def test_a_hurt_model_that_cannot_be_cured_is_halted_with_advice(tmp_path):
    training, guard = poisoned(tmp_path, cured=99, recipe=recipe(max_rollbacks_per_incident=1))
    run(training, guard)
    assert guard.halted is not None
    assert [one["capabilities"] for one in of(guard, "strengthen_data")] == [["late"]]


def incident(**fields: Any) -> Incident:
    given: dict[str, Any] = {
        "id": 1,
        "attempt": 1,
        "onset_step": 60,
        "alarm_step": 61,
        "last_alarm_step": 64,
        "loss_moved_step": None,
        "first_mover": "loss/global",
        "cause": "unknown",
        "diagnosis": {},
        "outcome": Outcome.RECOVERED,
        "verification": {"passed": True, "probes": []},
        "closed_step": 74,
    }
    return Incident(**(given | fields))


@pytest.mark.parametrize(
    ("fields", "step"),
    [
        ({}, 59 + 10 * 5),
        ({"closed_step": 500}, 501),
        ({"outcome": None}, None),
        ({"outcome": Outcome.HALTED}, None),
        ({"verification": {"passed": True, "probes": [], "again": True}}, None),
        ({"verification": None}, None),
    ],
)
def test_when_the_second_verification_is_due(fields, step):
    assert again_step([incident(**fields)]) == step
    assert again_step([]) is None
