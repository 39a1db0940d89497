"""What cannot be begun or resumed is refused in a sentence; what fails later is borne."""

import dataclasses
import errno
import json
import logging
import os
from pathlib import Path

import pytest
import torch

from foreshock.core.errors import CapabilityError, ConfigError, LoopError, RunDirError
from foreshock.data.stream import Stream
from foreshock.durable import RealDisk
from foreshock.recipes import Cadence
from tests.guard.programs import (
    Sentences,
    clean_stages,
    guarded,
    make,
    poisoned_stages,
    recipe,
    run,
    take_step,
)
from tests.simulated_disk import SimulatedDisk


def contents(path):
    return {p: p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file() and p.name != "lock"}


def refused(run_dir, match, training=None, **options):
    before = contents(run_dir) if run_dir.exists() else None
    training = training or make()
    with pytest.raises(RunDirError, match=match) as caught:
        guarded(training, run_dir, **options)
    assert "\n" not in str(caught.value)
    assert (contents(run_dir) if run_dir.exists() else None) == before
    assert not any(m._forward_pre_hooks for m in training.model.modules())


def finished(run_dir):
    training = make()
    run(training, guarded(training, run_dir, max_steps=2))
    return run_dir


def test_a_directory_with_something_in_it(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    refused(tmp_path, "not empty")


def test_a_run_is_not_begun_twice(tmp_path):
    refused(finished(tmp_path / "run"), "resume")


def test_nothing_to_resume(tmp_path):
    refused(tmp_path / "missing", "not a Foreshock run directory", resume=True)
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "not a Foreshock run directory", resume=True)


def test_another_program(tmp_path):
    run_dir = finished(tmp_path / "run")
    refused(run_dir, "fingerprint", make(width=32), resume=True)
    refused(run_dir, "fingerprint", make(optimizer="sgd"), resume=True)
    refused(run_dir, "stream", make(stages=clean_stages(100)), resume=True)
    other = make()
    other.stream = Stream(clean_stages(), batch_size=8, seed=7)
    refused(run_dir, "stream", other, resume=True)
    refused(run_dir, "program", resume=True, name="other")


def test_a_newer_format(tmp_path):
    run_dir = finished(tmp_path / "run")
    path = run_dir / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    refused(run_dir, "format 99", resume=True)


def test_a_run_that_goes_on_elsewhere(tmp_path):
    with guarded(make(), tmp_path / "run"):
        refused(tmp_path / "run", "in use", resume=True)


class FullDisk:
    """The real disk, until it takes no more bytes."""

    def __init__(self, changes: int) -> None:
        self.left, self.disk = changes, RealDisk()

    def __getattr__(self, name):
        method = getattr(self.disk, name)
        if name not in ("write", "append", "make_dir"):
            return method

        def counted(*args):
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return method(*args)

        return counted


@pytest.mark.parametrize("changes", range(7))
def test_a_disk_that_is_full_at_the_start(tmp_path, changes):
    """It says so; and once there is room, the same run can be begun or taken up."""
    run_dir = tmp_path / "run"
    training = make()
    with pytest.raises(RunDirError, match=r"free some space|No space left") as caught:
        run(training, guarded(training, run_dir, disk=FullDisk(changes), max_steps=3))
    assert "\n" not in str(caught.value)
    assert not any(m._forward_pre_hooks for m in training.model.modules())
    training = make()
    resume = (run_dir / "run.json").exists()
    digest = run(training, guarded(training, run_dir, max_steps=3, resume=resume))
    plain = make()
    assert digest == run(plain, guarded(plain, tmp_path / "plain", max_steps=3))


@pytest.mark.parametrize("changes", [20, 60])
@pytest.mark.parametrize("poison", [0, 80])
def test_a_disk_that_fills_up_does_not_stop_the_training(tmp_path, caplog, changes, poison):
    stages = poisoned_stages(300, poison, 200) if poison else clean_stages()
    options = {"max_steps": 55}
    plain = make(stages=stages)
    expected = run(plain, guarded(plain, tmp_path / "plain", **options))
    training = make(stages=stages)
    with caplog.at_level(logging.WARNING, "foreshock"):
        guard = guarded(training, tmp_path / "run", disk=FullDisk(changes), **options)
        digest = run(training, guard)
    assert digest == expected
    assert bool(guard.book.incidents) == bool(poison)
    assert any("Training goes on" in message for message in caplog.messages)


@pytest.mark.parametrize("full_from", [12, 33])
def test_once_there_is_room_again_a_crash_loses_no_decision(full_from):
    """No snapshot may pass the decisions that wait for the disk."""
    run_dir = Path("/run/a")
    cadence = Cadence(memory_steps=5, memory_keep=3, disk_steps=10, disk_keep=2, asynchronous=False)

    def go(disk, full_from=None, room_from=None, stop=None):
        training = make(stages=poisoned_stages(300, 80, 200))
        guard = guarded(
            training,
            run_dir,
            disk=disk,
            resume=disk.exists(run_dir / "run.json"),
            recipe=recipe(cadence=cadence),
        )
        training.model.train()
        steps = 0
        with guard:
            for batch in guard:
                if steps == stop:
                    return None
                take_step(training, guard, batch)
                steps += 1
                disk.full = steps >= (full_from or 999) and steps < (room_from or 999)
            return guard.digest()

    expected = go(SimulatedDisk())
    for stop in (42, 48, 55):
        disk = SimulatedDisk()
        try:
            go(disk, full_from, 50, stop)
        finally:
            disk.kill_process()
        disk = disk.crash(stop)
        disk.full = False
        assert go(disk) == expected


def test_no_snapshot_passes_decisions_that_the_disk_has_not_taken(tmp_path):
    """A resume from such a snapshot would have lost a quarantine that its data order shows."""

    class NoDecisions(FullDisk):
        def __getattr__(self, name):
            method = getattr(self.disk, name)
            if name != "append":
                return method

            def refused(path, data):
                if path.name == "decisions.jsonl" and guard.step_number >= 12:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return method(path, data)

            return refused

    training = make(stages=poisoned_stages(300, 80, 200))
    cadence = Cadence(memory_steps=5, memory_keep=3, disk_steps=10, disk_keep=9, asynchronous=False)
    guard = guarded(training, tmp_path / "run", disk=NoDecisions(0), recipe=recipe(cadence=cadence))
    run(training, guard)
    assert guard.book.incidents
    names = sorted(path.name for path in (tmp_path / "run/snapshots").iterdir())
    assert names[:2] == ["00000000-a00001", "00000010-a00001"]
    assert all(name.endswith("a00001") for name in names)


def test_a_loop_with_its_own_loader_cannot_be_rolled_back(tmp_path):
    training = make()
    training.stream = [torch.zeros(2, 4, dtype=torch.long)] * 3
    with pytest.raises(CapabilityError, match="can_rollback=False") as caught:
        guarded(training, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    with pytest.raises(CapabilityError, match="resumed"):
        guarded(training, tmp_path / "run", resume=True, recipe=recipe(can_rollback=False))


def test_it_is_watched_and_skipped_all_the_same(tmp_path):
    data = Sentences(400)
    training = make()
    batches = torch.utils.data.DataLoader(data, batch_size=8)
    training.stream = batches
    seen = []

    def spoil(guard, training):
        seen.append(guard.step_number)
        if guard.step_number in (3, 30):
            weight = training.model.embedding.weight
            hook = weight.register_hook(lambda grad: (hook.remove(), grad * torch.nan)[1])

    guard = guarded(training, tmp_path / "run", recipe=recipe(can_rollback=False))
    run(training, guard, before_step=spoil)
    assert guard.step_number == 50
    assert [r["step"] for r in guard._journal.records if r["kind"] == "skip"] == [4, 31]
    assert all(torch.isfinite(p).all() for p in training.model.parameters())
    assert guard.attempt == 1


def test_it_halts_where_only_a_rollback_would_help(tmp_path):
    training = make()
    training.stream = torch.utils.data.DataLoader(Sentences(400), batch_size=8)

    def spoil(guard, training):
        if guard.step_number == 20:
            training.model.last_norm.weight.data[0] = torch.nan

    guard = guarded(training, tmp_path / "run", recipe=recipe(can_rollback=False))
    run(training, guard, before_step=spoil)
    assert "cannot go back" in guard.halted
    assert guard.step_number <= 25  # three steps without an update, and the lag of reading


def test_arguments_that_are_not_allowed_leave_no_directory(tmp_path):
    run_dir = tmp_path / "run"
    for options, match in (
        ({"accumulate": 0}, "accumulate is 0"),
        ({"clip": 0.0}, "clip is 0"),
        ({"recipe": dataclasses.replace(recipe(), signals=recipe().signals * 2)}, "measure"),
    ):
        training = make()
        with pytest.raises(ConfigError, match=match):
            guarded(training, run_dir, **options)
        assert not run_dir.exists()
        assert not any(m._forward_pre_hooks for m in training.model.modules())


def test_a_loop_out_of_step_is_told(tmp_path):
    training = make()
    with guarded(training, tmp_path / "run") as guard:
        with pytest.raises(LoopError, match="without a batch"):
            guard.step(torch.zeros((), requires_grad=True))
        batch = next(guard)
        with pytest.raises(LoopError, match="asked for before"):
            next(guard)
        with pytest.raises(LoopError, match=r"shape \(2,\)"):
            guard.step(torch.zeros(2, requires_grad=True))
        with pytest.raises(LoopError, match="requires_grad=False"):
            guard.step(torch.zeros(()))
        take_step(training, guard, batch)
        assert guard.step_number == 1
