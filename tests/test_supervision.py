"""What the supervisor tells the policy of a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.incident import IncidentBook
from foreshock.core.policy import Policy, Situation
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.data.stream import Stage
from foreshock.journal import Journal
from foreshock.quiet_disk import QuietDisk
from foreshock.supervision import Supervisor
from tests.core.test_policy import blamed
from tests.guard.programs import Sentences, guarded, make, run


class Recording:
    """A policy that remembers what it was asked."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.asked: list[Situation] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def decide(self, situation: Situation) -> Any:
        self.asked.append(situation)
        return self._policy.decide(situation)


def twice_poisoned() -> list[Stage]:
    parts = [(480, 1, False), (32, 2, True), (480, 3, False), (32, 4, True), (800, 5, False)]
    return [
        Stage(name=f"s{seed}", sources={f"d{seed}": Sentences(size, seed=seed, poisoned=bad)})
        for size, seed, bad in parts
    ]


def test_a_situation_holds_the_history_and_the_window_since_the_onset(tmp_path) -> None:
    training = make(stages=twice_poisoned())
    guard = guarded(training, tmp_path / "run")
    recording = Recording(guard._supervisor.policy)
    guard._supervisor.policy = recording  # type: ignore[assignment]
    run(training, guard)
    first, second = guard.book.incidents[:2]
    asked = [one for one in recording.asked if one.incident is None]
    at_first = next(one for one in asked if not one.earlier)
    at_second = next(one for one in asked if one.earlier)
    assert at_second.earlier == [first]
    assert second.id == 2
    assert {one.num_samples for one in asked} == {training.stream.order.total}
    onset = at_first.diagnosis.onset_step
    assert at_first.window == (8 * (onset - 1), 8 * at_first.step)
    assert at_first.window[1] == at_first.position
    climbing = [one for one in recording.asked if one.incident is first]
    assert all(one.earlier == [] for one in climbing)


def test_advice_is_kept_and_what_was_judged_stays_judged() -> None:
    advice = {"kind": "advice", "attempt": 1, "step": 30, "advice_id": 1}
    book = IncidentBook([advice, {**advice, "step": 50, "advice_id": 2}])
    assert [one["step"] for one in book.advices] == [30, 50]
    assert book.judged_step == 50
    assert (book.incidents, book.open, book.num_rollbacks) == ([], None, 0)


# ---- what is suspect ----------------------------------------------------------------


def alarm(step: int) -> Alarm:
    return Alarm(
        kind=AlarmKind.SPIKE, detector="spike", series="loss/global", step=step, onset_step=step,
        value=9.0,
    )  # fmt: skip


def supervisor(*alarmed: int, policy: Policy | None = None) -> Supervisor:
    """Of a run that takes eight positions a step, whose last alarms were at these steps."""
    monitor: Any = SimpleNamespace(
        episode=[alarm(step) for step in alarmed],
        last_alarm_step=max(alarmed, default=0),
        last_step=200,
        consecutive_skips=0,
        diagnose=lambda *_given, **_told: blamed("data_batch", onset=min(alarmed)),
        limit=lambda _series: None,
    )
    refs = [
        SnapshotRef(id=f"s{step}", attempt=1, step=step, position=8 * step, durable=True,
                    digest="", health=Health())
        for step in range(0, 200, 10)
    ]  # fmt: skip
    return Supervisor(
        monitor,
        policy or Policy(),
        Journal.follow(QuietDisk(), Path("run"), {}, [], lambda: 0.0, last_attempt=1),
        has_scaler=False,
        findings=lambda _first, _last: None,
        snapshots=lambda: refs,
        position_after=lambda step: 8 * step,
        lag_steps=1,
    )


def window(record: Any) -> tuple[int, int]:
    (call,) = [one for one in record.plan.actions if one.name == "quarantine"]
    return call.arguments["start"], call.arguments["stop"]


def test_quiet_steps_after_a_healed_spike_are_not_set_aside() -> None:
    found = supervisor(57, 58)
    record = found.harm_found(1, 75, "held_out_loss worse by 1")
    assert record is not None and record.position == 8 * 58
    assert record.window == (8 * 56, 8 * 58)
    assert window(record) == (8 * 50, 8 * 58)
    assert record.step == 75  # as many steps are undone


@pytest.mark.parametrize(("later", "position"), [((), 8 * 58), ((64,), 8 * 64)])
def test_a_failed_verification_suspects_what_came_up_to_the_last_alarm(later, position) -> None:
    """Those before the state that was gone back to are the incident's own, and count no more."""
    found = supervisor(57, 58)
    found.harm_found(1, 75, "harm")
    done(found)
    found.monitor.episode = []
    found.monitor.last_alarm_step = max(later, default=12)
    record = found.failed_verification(2, 190)
    assert record is not None and record.position == position
    assert window(record) == (8 * 50, position + 64)


def test_what_a_verification_suspected_stays_though_later_alarms_come() -> None:
    found = supervisor(57, 58)
    found.harm_found(1, 75, "harm")
    done(found)
    result = {"passed": True, "probes": [], "note": ""}
    found.record("verification", attempt=2, step=90, verification=result, position=8 * 60)
    found.monitor.last_alarm_step = 150
    assert found.suspect_position() == 8 * 60
    found.failed_verification(2, 190)
    assert found.book.open is not None and found.book.open.suspect_position is None
    found.monitor.last_alarm_step = 20
    assert found.suspect_position() == 8 * 60  # of the new plan


def test_a_plan_in_place_suspects_alarms_after_it() -> None:
    pausing = Policy(ladder=("pause", "halt"), preferences={})
    found = supervisor(57, 58, policy=pausing)
    record = found.harm_found(1, 75, "harm")
    assert record is not None and record.plan.target_step is None
    found.monitor.last_alarm_step = 75
    assert found.suspect_position() == 8 * 58
    found.monitor.last_alarm_step = 77
    assert found.suspect_position() == 8 * 77


def done(found: Supervisor) -> None:
    last = found.book.incidents[-1].plans[-1]
    for call in last.plan.actions:
        found.record("action_done", attempt=1, step=75, action=call.name, result="done")
    found.record("plan_done", attempt=1, step=75, plan_id=last.id)
