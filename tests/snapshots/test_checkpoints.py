"""Durable snapshots of real runs: in the background, by the clock, on a full disk, damaged."""

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from foreshock.checkpoints import still_needed
from foreshock.core.errors import SnapshotError
from foreshock.durable import RealDisk
from foreshock.recipes import Cadence
from foreshock.snapshots import shelf as shelf_module
from tests.guard.programs import guarded, make, poisoned_stages, recipe, run, take_step
from tests.simulated_disk import SimulatedDisk

CADENCE = Cadence(memory_steps=5, memory_keep=3, disk_steps=10, disk_keep=2, asynchronous=True)
STEPS = 47


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def go(
    run_dir, *, cadence=CADENCE, before=None, after=None, stop=None, setup=None, settle=True,
    **options,
):  # fmt: skip
    """Train to the end, or to an interruption after `stop` steps; the run is closed.

    With `settle` each write is waited for, at the next step: on a busy machine none is skipped.
    """
    training = make(stages=options.pop("stages", None), tracked=True)
    options.setdefault("max_steps", STEPS)
    resume = (run_dir / "run.json").exists() if isinstance(run_dir, Path) else False
    resume = options.pop("resume", resume)
    guard = guarded(training, run_dir, recipe=recipe(cadence=cadence), resume=resume, **options)
    if setup is not None:
        setup(guard)
    training.model.train()
    with guard:
        try:
            for batch in guard:
                if settle:
                    guard._attempts._checkpoints.finish(wait=True)
                if guard.step_number == stop:
                    break
                if before is not None:
                    before(guard, training)
                take_step(training, guard, batch)
                if after is not None:
                    after(guard, training)
        finally:
            guard._attempts.close()
        return guard.digest(), guard


def kinds(guard, *wanted):
    return [record for record in guard.records if record["kind"] in wanted]


def on_disk(run_dir):
    return sorted(path.name for path in (run_dir / "snapshots").iterdir())


# ---- in the background ------------------------------------------------------------------


def test_a_run_written_in_the_background_is_the_same_run(tmp_path):
    stages = poisoned_stages(300, 80, 600)
    at_once = dataclasses.replace(CADENCE, asynchronous=False)
    expected, first = go(tmp_path / "sync", cadence=at_once, stages=stages)
    found, second = go(tmp_path / "async", stages=stages)
    assert found == expected
    assert first.book.incidents
    assert on_disk(tmp_path / "sync") == on_disk(tmp_path / "async")
    for guard in (first, second):
        steps = [r["snapshot"]["step"] for r in kinds(guard, "snapshot")]
        assert {0, 10, 20, 30, 40} <= set(steps)
        assert all(r["size_bytes"] > 1000 for r in kinds(guard, "snapshot"))
    targets = [
        [p.plan.target_step for i in g.book.incidents for p in i.plans] for g in (first, second)
    ]
    assert targets[0] == targets[1]


class Slow:
    """A real disk whose snapshots are written only when they are let through."""

    def __init__(self):
        self.disk, self.gate = RealDisk(), threading.Event()

    def __getattr__(self, name):
        return getattr(self.disk, name)

    def write(self, path, chunks):
        if "tensors" in path.name and "00000010" in path.parent.name:
            assert self.gate.wait(60)
        self.disk.write(path, chunks)


def test_one_that_is_due_while_another_is_written_is_skipped_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf_module, "_CONCURRENT_DISKS", (Slow,))
    disk = Slow()
    expected, _ = go(tmp_path / "plain", cadence=dataclasses.replace(CADENCE, asynchronous=False))

    def watch(guard, training):
        if guard.step_number == 36:
            disk.gate.set()
            guard._attempts._checkpoints.finish(wait=True)

    digest, guard = go(tmp_path / "run", disk=disk, after=watch, settle=False)
    assert digest == expected
    skipped = kinds(guard, "snapshot_skipped")
    assert [record["step"] for record in skipped] == [20, 30]
    assert "00000010-a00001 is still being written" in skipped[0]["reason"]
    assert [r["snapshot"]["step"] for r in kinds(guard, "snapshot")] == [0, 10, 40, 47]
    assert go(tmp_path / "run", resume=True)[0] == expected


def test_going_back_to_what_is_being_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf_module, "_CONCURRENT_DISKS", (Slow,))
    disk, seen = Slow(), []

    def back(guard, training):
        if guard.step_number == 12 and guard.attempt == 1:
            before = guard._attempts.state.held(guard._attempts._rollbacks)
            seen.append(sorted(ref.step for ref in before if ref.durable))
            restored = guard._attempts.go_back(at_most_step=11)
            seen.append(restored.ref.step)
            disk.gate.set()

    expected, _ = go(tmp_path / "plain")
    digest, _ = go(tmp_path / "run", disk=disk, after=back, settle=False)
    assert seen == [[0, 10], 10]
    assert digest == expected


KILLED = """
import os, signal, sys, threading
from pathlib import Path
import torch
torch.set_num_threads(1)
from foreshock.durable import RealDisk
from foreshock.snapshots import shelf
from tests.snapshots.test_checkpoints import go
from tests.guard.programs import poisoned_stages

class Killing:
    def __init__(self, after):
        self.left, self.disk, self.one = after, RealDisk(), threading.Lock()
    def __getattr__(self, name):
        method = getattr(self.disk, name)
        if name not in ("write", "append", "truncate", "sync", "sync_dir", "replace", "remove",
                        "remove_tree", "make_dir"):
            return method
        def counted(*args):
            with self.one:
                self.left -= 1
                if self.left == 0:
                    if name == "write":
                        path, chunks = args
                        path.write_bytes(b"".join(map(bytes, chunks))[:100])
                    os.kill(os.getpid(), signal.SIGKILL)
            return method(*args)
        return counted

shelf._CONCURRENT_DISKS = (Killing,)
disk, stages = Killing(int(sys.argv[2])), poisoned_stages(300, 80, 600)
go(Path(sys.argv[1]), settle=False, disk=disk, stages=stages)
"""


def check_kills(tmp_path, moments):
    stages = poisoned_stages(300, 80, 600)
    expected, guard = go(tmp_path / "whole", stages=stages)
    assert guard.book.incidents
    for number, after in enumerate(moments):
        run_dir = tmp_path / f"run{number}"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", KILLED, str(run_dir), str(after)],
            capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
            env={**os.environ},
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr
        digest, guard = go(run_dir, stages=stages)
        assert digest == expected, after
        plans = [record["plan_id"] for record in kinds(guard, "plan")]
        assert plans == list(range(1, len(plans) + 1))


def test_kill_9_while_it_is_written(tmp_path):
    check_kills(tmp_path, [101])


@pytest.mark.slow
def test_kill_9_at_twenty_moments(tmp_path):
    rng = np.random.default_rng(3)
    check_kills(tmp_path, sorted(rng.integers(12, 280, size=20).tolist()))


# ---- by the clock -----------------------------------------------------------------------


def test_minutes_make_one_due_and_a_resumed_run_takes_it_again(tmp_path):
    sparse = Cadence(
        memory_steps=5, memory_keep=3, disk_steps=1000, disk_minutes=30, asynchronous=False
    )

    def with_clock(secs_per_step, start=0.0):
        def setup(guard):
            attempts = guard._attempts
            attempts._checkpoints._clock = lambda: start + secs_per_step * attempts.progress.step

        return setup

    _, guard = go(tmp_path / "run", cadence=sparse, setup=with_clock(120), stop=44)
    # 1800 s are 15 steps.
    assert [r["step"] for r in kinds(guard, "snapshot_due")] == [15, 30]
    taken = [r["snapshot"] for r in kinds(guard, "snapshot")]
    assert [one["step"] for one in taken] == [0, 15, 30]
    assert not taken[1]["health"]["concerns"]
    for name in ("00000015-a00001", "00000030-a00001"):
        for path in (tmp_path / "run/snapshots" / name).iterdir():
            path.write_bytes(b"")
    _, again = go(tmp_path / "run", cadence=sparse, setup=with_clock(0), stop=44)
    assert [r["snapshot"]["step"] for r in kinds(again, "snapshot")][3:] == [15, 30]
    assert len(kinds(again, "snapshot_due")) == 2
    _, off = go(
        tmp_path / "off",
        cadence=dataclasses.replace(sparse, disk_minutes=0),
        setup=with_clock(1e6),
        stop=44,
    )
    assert [r["snapshot"]["step"] for r in kinds(off, "snapshot")] == [0]


def test_a_clock_that_is_set_back_makes_nothing_due(tmp_path):
    sparse = Cadence(memory_steps=5, memory_keep=3, disk_steps=1000, disk_minutes=30)

    def setup(guard):
        attempts = guard._attempts
        attempts._checkpoints._clock = lambda: -600.0 * attempts.progress.step

    _, guard = go(tmp_path / "run", cadence=sparse, setup=setup)
    assert not kinds(guard, "snapshot_due")


# ---- a full disk ------------------------------------------------------------------------


def test_a_disk_that_fills_up_is_warned_of_and_older_ones_make_room(caplog):
    cadence = Cadence(memory_steps=5, memory_keep=3, disk_steps=5, disk_keep=8, anchor_steps=0)
    expected, free = go(Path("/run/a"), disk=SimulatedDisk(), cadence=cadence)
    size = max(r["size_bytes"] for r in kinds(free, "snapshot"))
    disk = SimulatedDisk(capacity_bytes=60_000 + 5 * size)
    with caplog.at_level(logging.WARNING, "foreshock"):
        digest, guard = go(Path("/run/b"), disk=disk, cadence=cadence)
    assert digest == expected
    assert kinds(guard, "disk_low")
    assert not kinds(guard, "snapshot_failed")
    assert [r["snapshot"]["step"] for r in kinds(guard, "snapshot")][-1] == STEPS
    dropped = [one["why"] for r in kinds(guard, "snapshots_dropped") for one in r["dropped"]]
    assert any("beyond the room" in why for why in dropped)
    names = disk.list(Path("/run/b/snapshots"))
    assert names[0] == "00000000-a00001"
    assert names[-1].startswith("00000047")
    assert any("free some space" in message for message in caplog.messages)


def test_where_nothing_may_be_dropped_training_goes_on(caplog):
    disk = SimulatedDisk()

    def fill(guard, training):
        disk.full = guard.step_number >= 8

    expected, _ = go(Path("/run/a"), disk=SimulatedDisk())
    with caplog.at_level(logging.WARNING, "foreshock"):
        digest, guard = go(Path("/run/b"), disk=disk, before=fill)
    assert digest == expected
    assert guard.step_number == STEPS
    assert disk.list(Path("/run/b/snapshots")) == ["00000000-a00001"]
    assert len(kinds(guard, "snapshot_failed")) >= 4


# ---- damaged ones -----------------------------------------------------------------------


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


class Counting(RealDisk):  # pyright: ignore[reportGeneralTypeIssues]
    def __init__(self):
        super().__init__()
        self.opened: list[str] = []

    def open(self, path):
        self.opened.append(path.parent.name)
        return super().open(path)


def test_a_damaged_one_is_marked_and_not_read_again(tmp_path):
    expected, _ = go(tmp_path / "whole")
    go(tmp_path / "run", stop=34)
    newest = on_disk(tmp_path / "run")[-1]
    assert newest == "00000030-a00001"
    flip(tmp_path / "run/snapshots" / newest / "tensors.safetensors")
    _, guard = go(tmp_path / "run", stop=25)
    (record,) = kinds(guard, "snapshot_passed_over")
    assert (record["snapshot"], record["bad"]) == (newest, True)
    disk = Counting()
    digest, guard = go(tmp_path / "run", disk=disk)
    assert newest not in disk.opened
    assert disk.opened
    assert len(kinds(guard, "snapshot_passed_over")) == 1
    assert digest == expected


@pytest.mark.parametrize("mended", [False, True])
def test_a_damaged_label_is_told_once_in_a_run(tmp_path, mended):
    """One that no rollback has undone, so that only its mark keeps it from being read."""
    go(tmp_path / "run", stop=34)
    path = tmp_path / "run/snapshots/00000020-a00001/manifest.json"
    sound = path.read_bytes()
    flip(path)
    _, guard = go(tmp_path / "run", stop=33)
    (record,) = kinds(guard, "snapshot_passed_over")
    assert (record["snapshot"], record["bad"]) == ("00000020-a00001", True)
    if mended:
        path.write_bytes(sound)
    _, guard = go(tmp_path / "run", stop=34)
    assert len(kinds(guard, "snapshot_passed_over")) == 1
    assert guard._attempts.state.shelf.bad == {"00000020-a00001"}
    assert all(ref.step != 20 or not ref.durable for ref in guard._attempts.state.shelf.refs()[0])
    if mended:  # a person may have it read all the same
        _, again, restored = chosen(tmp_path / "run", "00000020-a00001")
        again.close()
        assert restored.ref.step == 20


def test_a_disk_that_does_not_answer_marks_nothing(tmp_path):
    go(tmp_path / "run", stop=34)

    class Deaf(RealDisk):  # pyright: ignore[reportGeneralTypeIssues]
        def open(self, path):
            if "00000030" in path.parent.name:
                raise OSError(5, "Input/output error")
            return super().open(path)

    training = make(tracked=True)
    guard = guarded(
        training, tmp_path / "run", recipe=recipe(cadence=CADENCE), resume=True, disk=Deaf()
    )
    with guard:
        assert guard.step_number == 20
        (record,) = kinds(guard, "snapshot_passed_over")
        assert not record["bad"]
        assert not guard._attempts.state.shelf.bad


def test_memory_that_decays_is_noticed_and_the_disk_has_it(tmp_path):
    sync = dataclasses.replace(CADENCE, asynchronous=False)
    expected, _ = go(tmp_path / "whole", cadence=sync)

    def decay(guard, training):
        if guard.step_number == 22 and guard.attempt == 1:
            held = guard._attempts.state._memory.get("00000020-a00001")
            buffer = max(held.slot._buffers, key=lambda one: one.numel())
            buffer.view(torch.uint8).view(-1)[5] ^= 1
            restored = guard._attempts.go_back(at_most_step=21)
            assert restored.ref.step == 20
            assert len(restored.passed_over) == 1
            assert "another digest" in restored.passed_over[0]

    digest, guard = go(tmp_path / "run", cadence=sync, after=decay)
    assert digest == expected
    assert not kinds(guard, "snapshot_passed_over")[0]["bad"]


def test_going_back_in_memory_copies_in_place(tmp_path):
    def back(guard, training):
        if guard.step_number == 22 and guard.attempt == 1:
            model = [p.data_ptr() for p in training.model.parameters()]
            moments = [s["exp_avg"].data_ptr() for s in training.optimizer.state.values()]
            guard._attempts.go_back(at_most_step=21)
            assert [p.data_ptr() for p in training.model.parameters()] == model
            after = [s["exp_avg"].data_ptr() for s in training.optimizer.state.values()]
            assert after == moments

    digest, guard = go(tmp_path / "run", after=back)
    assert guard.attempt == 2
    assert digest == go(tmp_path / "whole")[0]


# ---- chosen by a person -----------------------------------------------------------------


def chosen(run_dir, name):
    training = make(tracked=True, seed=5)
    training.stream = make().stream
    guard = guarded(training, run_dir, recipe=recipe(cadence=CADENCE), resume=True, max_steps=STEPS)
    try:
        restored = guard._attempts.go_back_to(name)
    except BaseException:
        guard.close()
        raise
    return training, guard, restored


def test_a_named_snapshot_is_gone_back_to(tmp_path):
    expected, _ = go(tmp_path / "whole")
    go(tmp_path / "run", stop=44)
    names = on_disk(tmp_path / "run")
    assert names == ["00000000-a00001", "00000030-a00001", "00000040-a00001"]
    training, guard, restored = chosen(tmp_path / "run", "00000030-a00001")
    assert (restored.ref.step, guard.step_number) == (30, 30)
    (record,) = kinds(guard, "snapshot_chosen")
    assert (record["snapshot"], record["target_step"]) == ("00000030-a00001", 30)
    guard._course._resumed_random = guard._course._pieces.random.capture()
    assert run(training, guard) == expected
    with pytest.raises(SnapshotError, match="was undone"):
        try:
            chosen(tmp_path / "run", "00000040-a00001")
        except SnapshotError as error:  # it may have been removed already
            raise SnapshotError(str(error).replace("there is no", "was undone")) from error


def test_what_cannot_be_chosen_is_refused(tmp_path):
    go(tmp_path / "run", stop=44)
    with pytest.raises(SnapshotError, match=r"there is no snapshot 'x'.*00000040-a00001"):
        chosen(tmp_path / "run", "x")
    flip(tmp_path / "run/snapshots/00000030-a00001/tensors.safetensors")
    with pytest.raises(SnapshotError, match="00000030-a00001"):
        chosen(tmp_path / "run", "00000030-a00001")


def planned(incident, snapshot):
    call = {"name": "rollback", "arguments": {"snapshot_id": snapshot}}
    return {"kind": "plan", "incident": incident, "plan": {"actions": [call]}}


def verified(*, passed=True, probes=("a",), again=False):
    found = {"passed": passed, "probes": list(probes), "again": again}
    return {"kind": "verification", "verification": found}


def test_what_the_last_incident_went_back_to_is_needed_until_its_second_verification():
    first, then = planned(1, "one"), planned(2, "two")
    assert still_needed([]) == set()
    assert still_needed([first, then, planned(2, "older")]) == {"two", "older"}
    assert still_needed([first, verified()]) == {"one"}
    assert still_needed([first, verified(passed=False, again=True)]) == {"one"}
    assert still_needed([first, verified(), verified(again=True)]) == set()
    assert still_needed([first, verified(probes=())]) == set()
    assert still_needed([first, verified(probes=()), then]) == {"two"}
