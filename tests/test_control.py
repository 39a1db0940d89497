"""The run as actions see it: pauses, handovers, and what is rebuilt from the journal."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foreshock.attachment import site_of
from foreshock.control import Control
from foreshock.core.errors import Halted, JournalError
from foreshock.core.records import decode_line, encode_line
from foreshock.guard import Guard
from foreshock.pausing import Pausing
from foreshock.update import trained_parameters
from tests.guard.programs import Training, guarded, make, recipe, take_step
from tests.simulated_disk import PowerLoss, SimulatedDisk

RUN = Path("/run/a")
LIFTED = RUN / "resume.now"


class Clock:
    """Seconds that pass only while someone sleeps; and what happens at a time."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start
        self.sleeps: list[float] = []
        self.at: dict[float, Callable[[], None]] = {}

    def __call__(self) -> float:
        return self.now

    def sleep(self, secs: float) -> None:
        self.sleeps.append(secs)
        self.now += secs
        for when in [one for one in self.at if one <= self.now]:
            self.at.pop(when)()


class Run:
    """A Guard, and a control of its run with a clock and a sleep of the test's."""

    def __init__(self, disk: SimulatedDisk, *, resume: bool = False, **options: Any) -> None:
        self.disk, self.clock = disk, Clock()
        self.training: Training = make()
        self.guard: Guard = guarded(
            self.training, RUN, disk=disk, resume=resume, clock=self.clock, **options
        )
        self.control = self.new_control()

    def new_control(self) -> Control:
        model, optimizer = self.training.model, self.training.optimizer
        return Control(
            self.guard._attempts,
            self.guard._journal,
            capabilities=self.guard.capabilities,
            model=model,
            probes=(),
            stream=self.training.stream,
            disk=self.disk,
            site=site_of(model, optimizer, trained_parameters(model, optimizer)),
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def kinds(self, *kinds: str) -> list[str]:
        return [record["kind"] for record in self.guard.records if record["kind"] in kinds]

    def lift(self) -> None:
        self.disk.write(LIFTED, [b""])


@pytest.fixture
def begun() -> Iterator[Run]:
    one = Run(SimulatedDisk())
    yield one
    one.guard.close()


PAUSES = ("paused", "pause_lifted", "halted")


def test_a_file_lifts_a_pause(begun: Run) -> None:
    begun.clock.at[1030.0] = begun.lift
    begun.control.begin(1, 0)
    said = begun.control.pause("look at the data", 3600.0)
    assert said == "paused and lifted by resume.now: look at the data"
    assert begun.clock.sleeps == [1.0] * 30
    assert begun.kinds(*PAUSES) == ["paused", "pause_lifted"]
    assert not begun.disk.exists(LIFTED)  # it answers one pause only
    assert begun.control.halt_note is None


def test_doing_it_again_does_not_wait_again(begun: Run) -> None:
    begun.clock.at[1003.0] = begun.lift
    begun.control.begin(1, 0)
    first = begun.control.pause("why", 60.0)
    again = begun.new_control()  # as after a kill between the lifting and the next record
    again.begin(1, 0)
    assert again.pause("why", 60.0) == first
    assert len(begun.clock.sleeps) == 3
    assert begun.kinds(*PAUSES) == ["paused", "pause_lifted"]
    again.begin(2, 0)
    begun.clock.at[1010.0] = begun.lift
    again.pause("another", 60.0)
    assert len(begun.clock.sleeps) == 10


def test_a_pause_that_nobody_lifts_ends_in_a_halt(begun: Run) -> None:
    begun.control.begin(1, 0)
    begun.control.pause("look at the data", 90.5)
    assert sum(begun.clock.sleeps) == 90.5
    assert begun.kinds(*PAUSES) == ["paused", "halted"]
    assert "nobody lifted the pause within 90 seconds" in str(begun.control.halt_note)
    assert "look at the data" in begun.disk.read(RUN / "handover.md").decode()


def test_the_time_that_passed_before_a_restart_counts(begun: Run) -> None:
    def die() -> None:
        raise PowerLoss

    begun.clock.at[1040.0] = die
    begun.control.begin(1, 0)
    with pytest.raises(PowerLoss):
        begun.control.pause("why", 100.0)
    begun.clock.now += 35.0  # until someone started it again
    begun.clock.sleeps.clear()
    again = begun.new_control()
    again.begin(1, 0)
    again.pause("why", 100.0)
    assert sum(begun.clock.sleeps) == 25.0
    assert begun.kinds(*PAUSES) == ["paused", "halted"]


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_a_clock_that_jumps_makes_no_pause_longer_than_it_is(begun: Run, jump: float) -> None:
    begun.control.begin(1, 0)
    begun.control._write("paused", reason="why", timeout_secs=50.0)
    begun.clock.now += jump
    begun.control.pause("why", 50.0)
    assert sum(begun.clock.sleeps) == (50.0 if jump < 0 else 0.0)


def test_a_file_from_before_is_no_answer(begun: Run) -> None:
    begun.lift()
    begun.control.begin(1, 0)
    begun.control.pause("why", 5.0)
    assert sum(begun.clock.sleeps) == 5.0
    assert begun.control.halt_note is not None


def test_a_file_that_is_put_while_nothing_runs_is_one(begun: Run) -> None:
    begun.control.begin(1, 0)
    begun.control._write("paused", reason="why", timeout_secs=50.0)  # and then it died
    begun.lift()
    again = begun.new_control()
    again.begin(1, 0)
    again.pause("why", 50.0)
    assert begun.clock.sleeps == []
    assert again.halt_note is None


def test_ranks_wait_for_what_the_first_one_sees() -> None:
    """Two ranks in step; the second sees no file and has another clock."""
    asked: list[str] = []
    answers: list[Any] = []

    def first(what: str, ask: Callable[[], Any]) -> Any:
        asked.append(what)
        answers.append(ask())
        return answers[-1]

    def second(what: str, ask: Callable[[], Any]) -> Any:
        assert what == asked.pop(0)
        return answers.pop(0)

    disk, clock, other = SimulatedDisk(), Clock(), Clock()
    disk.make_dir(RUN)
    clock.at[1005.0] = lambda: disk.write(LIFTED, [b""])
    one = Pausing(disk, RUN, sleep=clock.sleep, from_first=first)
    two = Pausing(SimulatedDisk(), RUN, sleep=other.sleep, from_first=second)
    assert one.wait(lambda: 60.0) == 5.0
    assert two.wait(lambda: 1e9) == 5.0
    assert clock.sleeps == other.sleeps
    assert answers == []


def test_a_disk_that_fails_while_it_waits_lifts_nothing() -> None:
    class Failing:
        def exists(self, path: Path) -> bool:
            raise OSError(5, "Input/output error")

    clock = Clock()
    waiting = Pausing(Failing(), RUN, sleep=clock.sleep)  # type: ignore[arg-type]
    waiting.clear()
    assert waiting.wait(lambda: 3.0) is None


def test_handover_says_what_was_tried_how_it_stands_and_how_to_go_on() -> None:
    disk = SimulatedDisk()
    training = make()

    def hurt(guard: Guard) -> None:
        if guard.step_number >= 30:
            weight = training.model.get_parameter("last_norm.weight")
            weight.register_hook(lambda grad: grad + float("nan"))

    policy = recipe(max_rollbacks_per_incident=2)
    guard = guarded(training, RUN, disk=disk, max_steps=100, recipe=policy)
    guard._control.begin(99, 0)
    guard._control.scale_lr(0.25, 1)
    training.model.train()
    with guard, pytest.raises(Halted) as halted:
        for batch in guard:
            hurt(guard)
            take_step(training, guard, batch)
    text = disk.read(RUN / "handover.md").decode()
    assert str(halted.value) in text
    for record in guard.records:
        if record["kind"] == "action_done" and record["action"] == "rollback":
            assert f"rollback: {record['result']}" in text
    assert text.count("rollback: back from step") == 2
    assert f"step {guard.step_number}, attempt {guard.attempt}" in text
    assert f"{guard.num_quarantined} samples are set aside" in text
    assert "the learning rate is multiplied by 0.25" in text
    for name in disk.list(RUN / "snapshots"):
        assert name in text
    for word in ("--resume", "foreshock report", "foreshock diagnose"):
        assert word in text


def test_moments_of_groups_that_are_not_there_are_left_and_that_is_said(begun: Run) -> None:
    begun.control.begin(1, 0)
    said = begun.control.reset_moments(5, ["blocks.7"], True)
    assert said == "nothing to reset: no module group is called blocks.7"
    assert begun.kinds("moments_reset") == []
    assert "zero when step 5 begins" in begun.control.reset_moments(5, ["mlp"], True)


def test_an_order_behind_the_end_of_the_data_is_none(begun: Run) -> None:
    training = begun.training
    training.stream.order.total = 4000  # as of a stream with an end
    begun.control.begin(1, 0)
    assert "nothing to reorder" in begun.control.perturb_order(4000)
    assert begun.kinds("data_reordered") == []


def test_the_seed_follows_from_plan_and_action(begun: Run) -> None:
    seeds = []
    for plan, action in ((1, 0), (1, 1), (2, 0), (1, 0)):
        begun.control.begin(plan, action)
        begun.control.perturb_weights(0.01, 4)
        begun.control.perturb_order(800)
    for kind in ("weights_perturbed", "data_reordered"):
        found = [record["seed"] for record in begun.guard.records if record["kind"] == kind]
        assert len(found) == len(set(found)) == 3
        assert all(0 <= seed < 2**53 for seed in found)
        seeds.append(found)
    assert seeds[0] == seeds[1]


FORGED: list[dict[str, Any]] = [
    {"kind": "lr_scaled", "first_step": 1, "factor": 0.5, "hold_steps": "x"},
    {"kind": "lr_scaled", "first_step": 1, "factor": 0.5, "ramp_steps": -4},
    {"kind": "clip_tightened", "first_step": 1, "max_norm": "NaN"},
    {"kind": "clip_tightened", "first_step": 1},
    {"kind": "epsilon_raised", "first_step": 1, "factor": "Infinity"},
    {"kind": "beta2_lowered", "first_step": 1, "value": 2},
    {"kind": "embedding_gradients_shrunk", "first_step": 1, "factor": [0.1]},
    {"kind": "moments_reset", "first_step": 1, "groups": {"a": 1}},
    {"kind": "weights_perturbed", "first_step": 1, "relative_std": 0.1, "seed": 1 << 70},
    {"kind": "data_reordered", "position": -1, "seed": 0},
    {"kind": "data_reordered", "position": 1},
    {"kind": "pause_lifted", "key": "plan8/1"},
    {"kind": "paused", "key": 3},
]


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_record_gives_one_clear_error(forged: dict[str, Any]) -> None:
    disk = SimulatedDisk()
    Run(disk).guard.close()
    path = RUN / "decisions.jsonl"
    record = {"time": 1.0, "attempt": 1, "step": 0, "key": "plan1/0", **forged}
    disk.append(path, encode_line(record))
    with pytest.raises(JournalError, match=r"decisions\.jsonl, line \d+ .*not what a run writes"):
        Run(disk, resume=True)
    assert json.loads(json.dumps(decode_line(encode_line(record)))) == record
