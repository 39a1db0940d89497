"""What a recovery may need again is on disk, and what it is compared with is proved."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from foreshock.core.probe import Probe
from foreshock.recipes import Cadence
from tests.guard.programs import guarded, make, poisoned_stages, recipe, run, take_step

BEFORE = 8 * 58  # the first poisoned step is 59; the newest state before it is in memory only
CADENCE = Cadence(memory_steps=5, memory_keep=3, disk_steps=30, disk_keep=3, asynchronous=False)


def training(*, after: int = 1200, seed: int = 0):
    found = make(stages=poisoned_stages(BEFORE, 32, after), tracked=True, seed=seed)
    if seed:
        found.stream = make(stages=poisoned_stages(BEFORE, 32, after)).stream
    return found


def of(guard, kind: str) -> list[Any]:
    return [record for record in guard.records if record["kind"] == kind]


def on_disk(tmp_path) -> set[str]:
    return {path.name for path in (tmp_path / "run/snapshots").iterdir()}


def test_what_was_gone_back_to_in_memory_becomes_durable(tmp_path):
    chosen = CADENCE
    plain = training()
    expected = run(plain, guarded(plain, tmp_path / "plain", recipe=recipe(cadence=chosen)))
    first = training()
    guard = guarded(first, tmp_path / "run", recipe=recipe(cadence=chosen))
    first.model.train()
    with guard:
        for batch in guard:
            take_step(first, guard, batch)
            if guard.attempt == 2 and guard.step_number == 57:
                break
    target = guard.book.incidents[0].rollbacks[0].plan.target_step
    assert target == 55
    assert "00000055-a00001" in on_disk(tmp_path)
    again = training(seed=3)
    resumed = guarded(again, tmp_path / "run", recipe=recipe(cadence=chosen), resume=True)
    assert resumed.step_number == 55
    assert run(again, resumed) == expected
    assert resumed.book.incidents[0].outcome == "recovered"


def test_it_stays_as_long_as_the_incident_may_go_back_to_it(tmp_path):
    """Also where something older was there in its place: until nothing more is verified."""
    first = training()
    probe = Whole()
    guard = guarded(first, tmp_path / "run", recipe=recipe(cadence=CADENCE), probes=[probe])
    stop_at_plan(first, guard)
    again = training(seed=3)
    resumed = guarded(
        again, tmp_path / "run", recipe=recipe(cadence=CADENCE), probes=[probe], resume=True
    )
    assert resumed.step_number == 30
    started = of(resumed, "attempt_started")[-1]
    assert started["snapshot"] == "00000030-a00001"
    again.model.train()
    seen = []
    with resumed:
        for batch in resumed:
            take_step(again, resumed, batch)
            verified = [one["verification"].get("again") for one in of(resumed, "verification")]
            if True in verified:
                break
            if resumed.step_number % 30 == 1:
                seen.append("00000030-a00001" in on_disk(tmp_path))
    assert len(seen) > 2 and all(seen)


def test_the_first_healthy_state_after_one_that_is_not_becomes_durable(tmp_path):
    first = training()
    guard = guarded(first, tmp_path / "run", recipe=recipe(cadence=CADENCE))
    run(first, guard)
    written = {one["snapshot"]["step"]: one["snapshot"] for one in of(guard, "snapshot")}
    closed = guard.book.incidents[0].closed_step
    assert written[60]["health"]["concerns"]  # the cadence asked for it while nothing was proved
    (due,) = of(guard, "snapshot_due")
    assert due["why"] == "health"
    assert closed <= due["step"] <= closed + 20  # `quiet_steps` after the last alarm
    assert due["step"] % 30
    assert not written[due["step"]]["health"]["concerns"]


def test_a_resumed_run_takes_the_same_one_again(tmp_path):
    whole = training()
    expected = run(whole, guarded(whole, tmp_path / "plain", recipe=recipe(cadence=CADENCE)))
    first = training()
    guard = guarded(first, tmp_path / "run", recipe=recipe(cadence=CADENCE))
    first.model.train()
    with guard:
        for batch in guard:
            take_step(first, guard, batch)
            if of(guard, "snapshot_due"):
                break
    (name,) = [one for one in on_disk(tmp_path) if one.startswith(f"{guard.step_number - 1:08d}")]
    for path in (tmp_path / "run/snapshots" / name).iterdir():
        path.write_bytes(b"")
    again = training(seed=3)
    resumed = guarded(again, tmp_path / "run", recipe=recipe(cadence=CADENCE), resume=True)
    assert resumed.step_number < guard.step_number - 1
    assert run(again, resumed) == expected
    assert len(of(resumed, "snapshot_due")) == 1
    taken = [one for one in of(resumed, "snapshot") if one["step"] == guard.step_number - 1]
    assert len(taken) == 2


def test_a_target_that_is_gone_tells_what_it_would_be_trained_from(tmp_path):
    first = training()
    guard = guarded(first, tmp_path / "run", recipe=recipe(cadence=CADENCE))
    first.model.train()
    with guard:
        for batch in guard:
            take_step(first, guard, batch)
            if guard.step_number == 46:
                told = {ref.step: ref.trained_from for ref in guard._attempts.refs()}
                assert told == dict.fromkeys((0, 30, 35, 40, 45))
                guard._attempts.state._memory.discard("00000040-a00001")
                told = {ref.step: ref.trained_from for ref in guard._attempts.refs()}
                assert told == {0: None, 30: None, 35: None, 40: 35, 45: None}
                guard._attempts.state._memory.discard("00000035-a00001")
                told = {ref.step: ref.trained_from for ref in guard._attempts.refs()}
                assert told == {0: None, 30: None, 35: 30, 40: 30, 45: None}
                break


# ---- what is compared with ----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Whole(Probe):
    """Shows nothing, or a model that is hurt from some step on, whatever is alarmed."""

    name: ClassVar[str] = "whole"
    guard: list[Any] = field(default_factory=list)
    hurt_from: int = 10**9

    def measure(self, model):
        hurt = bool(self.guard) and self.guard[0].step_number >= self.hurt_from
        return [1.0 if hurt else 0.0] * 4


def stop_at_plan(one, guard) -> None:
    one.model.train()
    with guard:
        for batch in guard:
            take_step(one, guard, batch)
            if guard.book.unfinished_plan is not None:
                break
    assert guard.book.unfinished_plan.plan.target_step == 55


@pytest.mark.parametrize("hurt_from", [10**9, 45])
def test_a_state_that_was_trained_again_is_no_proof(tmp_path, hurt_from):
    """Killed before it went back: 55 is gone, and 30 is trained up to it. Hurt on that way."""
    chosen = recipe(cadence=CADENCE, max_rollbacks_per_incident=1)
    first = training()
    probe = Whole(hurt_from=hurt_from)
    stop_at_plan(first, guarded(first, tmp_path / "run", recipe=chosen, probes=[probe]))
    again = training(seed=3)
    resumed = guarded(again, tmp_path / "run", recipe=chosen, probes=[probe], resume=True)
    probe.guard.append(resumed)
    run(again, resumed)
    direct, later = of(resumed, "measured_before")
    assert (direct["at_step"], direct.get("trained_from")) == (30, None)
    assert (later["at_step"], later["trained_from"]) == (55, 30)
    verified = of(resumed, "verification")[0]["verification"]
    assert verified["against"] == "step 55, trained again from step 30"
    assert verified["also_against"] == "00000030-a00001"
    assert verified["passed"] is (hurt_from > 45)
    if hurt_from == 45:
        assert "did not cure" in resumed.halted
