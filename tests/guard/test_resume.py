"""A run that was stopped anywhere and resumed ends as the run that never was."""

import random

import numpy as np
import pytest
import torch

from foreshock.core.errors import LoopError, SnapshotError
from tests.guard.programs import (
    Average,
    Sentences,
    guarded,
    make,
    poisoned_stages,
    run,
    take_step,
)

STEPS = 47  # durable snapshots at 0, 20 and 40
VARIANTS = {
    "plain": {"scheduler": "cosine"},
    "scaler": {"scheduler": "one_cycle", "scaler": True, "optimizer": "fused"},
    "sgd": {"scheduler": "lambda", "optimizer": "sgd"},
}
OPTIONS = {"plain": {"accumulate": 2}, "scaler": {"clip": 1.0}, "sgd": {"clip": 1.0}}
untouched: dict[str, str] = {}


def expected(variant, tmp_path):
    if variant not in untouched:
        training = make(tracked=True, **VARIANTS[variant])
        guard = guarded(training, tmp_path / "whole", max_steps=STEPS, **OPTIONS[variant])
        untouched[variant] = run(training, guard)
    return untouched[variant]


def resumed(variant, run_dir):
    training = make(tracked=True, seed=99, **VARIANTS[variant])
    training.stream = make().stream
    guard = guarded(training, run_dir, max_steps=STEPS, resume=True, **OPTIONS[variant])
    torch.rand(3), random.random(), np.random.random()  # what a loader may draw as it is built
    return run(training, guard)


FAST = [("plain", 0), ("plain", 21), ("scaler", 1), ("scaler", 19), ("sgd", 20), ("sgd", 46)]


@pytest.mark.parametrize(("variant", "stop"), FAST)
def test_stopped_by_its_last_step(tmp_path, variant, stop):
    check_a_stop(tmp_path, variant, stop)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [0, 1, 4, 5, 6, 19, 20, 21, 33, 39, 40, 41, 46])
@pytest.mark.parametrize("variant", VARIANTS)
def test_stopped_by_any_last_step(tmp_path, variant, stop):
    check_a_stop(tmp_path, variant, stop)


def check_a_stop(tmp_path, variant, stop):
    training = make(tracked=True, **VARIANTS[variant])
    run(training, guarded(training, tmp_path / "run", max_steps=stop, **OPTIONS[variant]))
    assert resumed(variant, tmp_path / "run") == expected(variant, tmp_path)


@pytest.mark.parametrize(
    ("how", "stop"),
    [("break", 0), ("break", 21), ("in the loss", 1), ("in the loss", 20), ("after backward", 39)],
)
def test_stopped_by_leaving_the_loop(tmp_path, how, stop):
    training = make(tracked=True, **VARIANTS["plain"])
    training.model.train()
    with guarded(training, tmp_path / "run", max_steps=STEPS, accumulate=2) as guard:
        try:
            for batch in guard:
                if guard.step_number == stop and how != "after backward":
                    if how == "break":
                        break
                    raise KeyboardInterrupt
                take_step(training, guard, batch)
                if guard.step_number == stop and how == "after backward":
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
    assert resumed("plain", tmp_path / "run") == expected("plain", tmp_path)


def test_stopped_again_and_again(tmp_path):
    training = make(tracked=True, **VARIANTS["scaler"])
    run(training, guarded(training, tmp_path / "run", max_steps=3, clip=1.0))
    for stop in (7, 8, 20, 23, 41):
        training = make(tracked=True, **VARIANTS["scaler"])
        guard = guarded(training, tmp_path / "run", max_steps=stop, resume=True, clip=1.0)
        run(training, guard)
    assert resumed("scaler", tmp_path / "run") == expected("scaler", tmp_path)


def test_a_finished_run_resumes_to_its_end(tmp_path):
    for resume in (False, True, True):
        training = make(tracked=True, **VARIANTS["sgd"])
        options = {"max_steps": STEPS, "resume": resume, **OPTIONS["sgd"]}
        digest = run(training, guarded(training, tmp_path / "run", **options))
        assert digest == expected("sgd", tmp_path)


def test_tracked_state_comes_back_in_any_order(tmp_path):
    training = make(tracked=True)
    run(training, guarded(training, tmp_path / "run", max_steps=11))
    again = make(tracked=True, seed=5)
    again.stream = make().stream
    again.track = dict(reversed(again.track.items()))
    with guarded(again, tmp_path / "run", resume=True) as guard:
        assert guard.step_number == 11
        for name in training.track["average"].state_dict():
            there = training.track["average"].state_dict()[name]
            assert torch.equal(again.track["average"].state_dict()[name], there)
        assert again.track["python"].random() == training.track["python"].random()
        assert guard.digest() != ""


def test_two_things_cannot_have_one_name_nor_join_late(tmp_path):
    training = make()
    with guarded(training, tmp_path / "run", max_steps=2) as guard:
        guard.track("average", Average(training.model))
        with pytest.raises(SnapshotError, match="average"):
            guard.track("average", Average(training.model))
        with pytest.raises(SnapshotError, match="'list'"):
            guard.track("list", [1])
        next(guard)
        with pytest.raises(LoopError, match="late"):
            guard.track("late", Average(training.model))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_end_of_the_data_ends_the_run(tmp_path, accumulate):
    training = make(stages=Sentences(70))  # nine batches, the last one short
    guard = guarded(training, tmp_path / "run", accumulate=accumulate)
    digest = run(training, guard)
    assert guard.step_number == 9 // accumulate
    again = make(stages=Sentences(70))
    resumed_guard = guarded(again, tmp_path / "run", accumulate=accumulate, resume=True)
    assert resumed_guard.step_number == 9 // accumulate
    assert run(again, resumed_guard) == digest


def test_half_a_step_at_the_end_of_the_data_is_told_and_leaves_nothing(tmp_path):
    training = make(stages=Sentences(40))
    guard = guarded(training, tmp_path / "run", accumulate=2)
    run(training, guard)
    (record,) = [r for r in guard._journal.records if r["kind"] == "step_incomplete"]
    assert record["positions"] == list(range(32, 40))
    assert all(p.grad is None for p in training.model.parameters())
    assert guard._journal.records[-1]["kind"] == "run_finished"


@pytest.mark.parametrize("stop", [23, 29])
def test_a_killed_run_aims_its_rollbacks_at_what_the_untouched_one_would(tmp_path, stop):
    """Snapshots in memory are gone, yet their labels are not: see `RunState.refs`."""

    def aims(guard):
        return sorted((ref.step, ref.digest, ref.health.healthy) for ref in guard._attempts.refs())

    training = make()
    training.model.train()
    at_twenty = None
    with guarded(training, tmp_path / "run") as guard:
        for batch in guard:
            if guard.step_number == 20:
                at_twenty = aims(guard)
            if guard.step_number == stop:
                break
            take_step(training, guard, batch)
    with guarded(make(), tmp_path / "run", resume=True) as resumed:
        assert resumed.step_number == 20
        assert [step for step, *_ in at_twenty] == [0, 10, 15, 20]
        assert aims(resumed) == at_twenty


@pytest.mark.parametrize("stop", [53, 58, 59])
def test_a_stop_soon_before_trouble_changes_nothing(tmp_path, stop):
    """The snapshot of the stop is off the cadence: a rollback must not aim at it."""

    def trained(folder, *stops):
        for place, last in enumerate([*stops, 120]):
            training = make(stages=poisoned_stages(480, 40))
            guard = guarded(training, tmp_path / folder, max_steps=last, resume=place > 0)
            digest = run(training, guard)
        return digest, [p.plan.target_step for i in guard.book.incidents for p in i.plans]

    whole, targets = trained("whole")
    assert targets
    assert trained("stopped", stop) == (whole, targets)
