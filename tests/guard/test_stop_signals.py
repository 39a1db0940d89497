"""The system asks a run to stop at any moment: it stops at once, whole, and goes on as ever."""

import dataclasses
import faulthandler
import gc
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from foreshock.core.errors import ConfigError, Stopped
from foreshock.durable import RealDisk
from foreshock.pausing import PauseInterrupted, Pausing
from foreshock.recipes import Cadence
from tests.guard.programs import CADENCE, guarded, make, recipe, run, take_step

STEPS = 47
VARIANTS = {
    "plain": {"scheduler": "cosine"},
    "scaler": {"scheduler": "one_cycle", "scaler": True, "optimizer": "fused"},
}
OPTIONS = {"plain": {"accumulate": 2}, "scaler": {"clip": 1.0}}
TOP = Path(__file__).parents[2]
untouched: dict[str, str] = {}


@pytest.fixture(autouse=True)
def handlers(no_handlers):
    """Every test leaves the handlers that it found: none."""
    yield
    assert [signal.getsignal(number) for number in no_handlers] == [signal.SIG_DFL] * 3
    signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def mine():
    """Handlers of the user's own; what they were called with."""
    called = []
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
    before = {n: signal.signal(n, lambda *told: called.append(told)) for n in numbers}
    yield called
    for number, handler in before.items():
        signal.signal(number, handler)


def expected(variant, tmp_path):
    if variant not in untouched:
        training = make(tracked=True, **VARIANTS[variant])
        guard = guarded(training, tmp_path / "whole", max_steps=STEPS, **OPTIONS[variant])
        untouched[variant] = run(training, guard)
    return untouched[variant]


def built(variant, run_dir, **options):
    training = make(tracked=True, **VARIANTS[variant])
    options = {"max_steps": STEPS, "resume": None, **OPTIONS[variant], **options}
    return training, guarded(training, run_dir, **options)


def ask(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def journal(run_dir):
    return [json.loads(line) for line in (run_dir / "decisions.jsonl").read_text().splitlines()]


def stopped_at(training, guard, step, ask=ask):
    """Train, and ask the run to stop while it computes a step."""
    training.model.train()
    with pytest.raises(Stopped) as stop, guard:
        for batch in guard:
            if guard.step_number + 1 == step:
                ask()
            take_step(training, guard, batch)
    return stop.value


CASES = [("plain", 1, "SIGTERM"), ("scaler", 20, "SIGUSR1"), ("plain", 33, "SIGTERM")]


@pytest.mark.parametrize(("variant", "step", "name"), CASES)
def test_the_step_in_hand_is_the_last_and_nothing_is_lost(tmp_path, variant, step, name):
    training, guard = built(variant, tmp_path / "run")
    stop = stopped_at(training, guard, step, lambda: ask(signal.Signals[name]))
    assert stop.code == stop.exit_code == 75
    assert str(stop) == guard.stopped
    assert f"by {name} after step {step}:" in guard.stopped and guard.halted is None
    end = journal(tmp_path / "run")
    (asked,) = [one for one in end if one["kind"] == "stopping"]
    assert asked["signal"] == name and asked["heard_secs"] >= 0
    assert end[-1]["kind"] == "run_stopped" and end[-1]["step"] == step
    assert (tmp_path / "run/snapshots" / end[-1]["snapshot"] / "manifest.json").is_file()
    again, resumed = built(variant, tmp_path / "run")
    assert resumed.step_number == step
    assert run(again, resumed) == expected(variant, tmp_path)


def test_a_stopped_guard_stays_stopped(tmp_path):
    training, guard = built("plain", tmp_path / "run")
    stopped_at(training, guard, 3)
    with pytest.raises(Stopped, match="after step 3"):
        next(guard)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_at_random_moments_again_and_again(tmp_path, seed, mine):
    """A timer asks, wherever the process is: in a step, in a snapshot, in the journal."""
    rng = random.Random(seed)
    stops = 0
    for _ in range(30):
        training, guard = built("plain", tmp_path / "run", signals=("SIGALRM",))
        training.model.train()
        before = guard.step_number
        with guard:
            try:
                for batch in guard:
                    if guard.step_number == before:
                        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 0.08))
                    take_step(training, guard, batch)
                break
            except Stopped:
                stops += 1
                assert guard.step_number > before
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    assert guard.step_number == STEPS and guard.stopped is None
    assert guard.digest() == expected("plain", tmp_path)
    assert len(mine) >= stops


class AskingDisk(RealDisk):
    """Asks the process to stop again with every file that it writes."""

    asking = False

    def write(self, path, chunks):
        if self.asking:
            ask(signal.SIGTERM)
            ask(signal.SIGUSR1)
        super().write(path, chunks)


def test_more_signals_while_the_last_snapshot_is_written_change_nothing(tmp_path, mine):
    disk = AskingDisk()
    training, guard = built("plain", tmp_path / "run", disk=disk)

    def first():
        ask()
        disk.asking = True

    stopped_at(training, guard, 13, first)
    disk.asking = False
    assert [number for number, _ in mine] == [signal.SIGTERM]
    again, resumed = built("plain", tmp_path / "run")
    assert resumed.step_number == 13
    assert run(again, resumed) == expected("plain", tmp_path)


def test_the_first_of_two_signals_counts(tmp_path, mine):
    def both():
        ask(signal.SIGUSR1)
        ask(signal.SIGTERM)

    training, guard = built("plain", tmp_path / "run")
    assert "by SIGUSR1" in str(stopped_at(training, guard, 4, both))
    assert [number for number, _ in mine] == [signal.SIGUSR1]


def test_a_snapshot_that_is_being_written_is_waited_for(tmp_path):
    class SlowDisk(RealDisk):
        def write(self, path, chunks):
            if "00000020-" in str(path):
                time.sleep(0.3)
            super().write(path, chunks)

    training, guard = built("plain", tmp_path / "run", disk=SlowDisk())
    stopped_at(training, guard, 21)
    names = [
        one["snapshot"]["id"] for one in journal(tmp_path / "run") if one["kind"] == "snapshot"
    ]
    assert names[-2:] == ["00000020-a00001", "00000021-a00001"]


def test_whether_it_fits_into_the_time_is_told_and_it_is_tried_all_the_same(tmp_path):
    for grace_secs, fits in ((1e-9, False), (1e9, True)):
        run_dir = tmp_path / f"{fits}"
        training, guard = built("plain", run_dir, grace_secs=grace_secs)
        stopped_at(training, guard, 3)
        (asked,) = [one for one in journal(run_dir) if one["kind"] == "stopping"]
        assert asked["fits"] is fits and asked["grace_secs"] == grace_secs
        assert asked["last_write_secs"] > 0
        assert journal(run_dir)[-1]["snapshot"] == "00000003-a00001"


class FullDisk(RealDisk):
    full = False

    def write(self, path, chunks):
        if self.full and "snapshots" in str(path):
            raise OSError(28, "No space left on device")
        super().write(path, chunks)


def test_on_a_full_disk_it_ends_and_says_that_the_step_is_not_there(tmp_path):
    disk, at_once = FullDisk(), dataclasses.replace(CADENCE, asynchronous=False)
    options = {"disk": disk, "recipe": recipe(cadence=at_once)}
    training, guard = built("plain", tmp_path / "run", **options)

    def first():
        ask()
        disk.full = True

    stop = stopped_at(training, guard, 23, first)
    assert "its state is not on disk" in str(stop)
    assert journal(tmp_path / "run")[-1]["snapshot"] is None
    again, resumed = built("plain", tmp_path / "run")
    assert resumed.step_number == 20
    assert run(again, resumed) == expected("plain", tmp_path)


# ---- handlers of others -------------------------------------------------------------


def test_a_handler_that_was_there_comes_after_the_snapshot_and_is_put_back(tmp_path):
    seen = []

    def own(number, frame):
        seen.append((number, journal(tmp_path / "run")[-1]["kind"]))

    before = signal.signal(signal.SIGUSR1, own)
    try:
        training, guard = built("plain", tmp_path / "run")
        stopped_at(training, guard, 3, lambda: ask(signal.SIGUSR1))
        assert seen == [(signal.SIGUSR1, "run_stopped")]
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_ends_the_process_does_so_after_the_snapshot(tmp_path):
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    try:
        training, guard = built("plain", tmp_path / "run")
        with pytest.raises(SystemExit) as ended, guard:
            for batch in guard:
                if guard.step_number == 4:
                    ask()
                take_step(training, guard, batch)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 9 and "after step 5" in guard.stopped
    assert journal(tmp_path / "run")[-1]["snapshot"] == "00000005-a00001"


def test_a_signal_that_came_too_late_for_the_loop_is_passed_on(tmp_path, mine):
    training, guard = built("plain", tmp_path / "run")
    with guard:
        for batch in guard:
            take_step(training, guard, batch)
            if guard.step_number == 2:
                ask()
                break
        assert mine == []
    assert [number for number, _ in mine] == [signal.SIGTERM]


def test_what_is_ignored_or_belongs_to_others_is_left_alone(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with (tmp_path / "stacks").open("w+") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks)
        try:
            training, guard = built("plain", tmp_path / "run")
            training.model.train()
            with guard:
                for batch in guard:
                    if guard.step_number == 2:
                        ask(signal.SIGTERM)
                        ask(signal.SIGUSR1)
                    take_step(training, guard, batch)
            during = (tmp_path / "stacks").stat().st_size
            ask(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
            signal.signal(signal.SIGTERM, before)
    assert guard.digest() == expected("plain", tmp_path) and guard.stopped is None
    assert 0 < during < (tmp_path / "stacks").stat().st_size


def test_a_child_process_dies_of_a_signal_as_ever(tmp_path):
    training, guard = built("plain", tmp_path / "run")
    with guard:
        take_step(training, guard, next(guard))
        context = multiprocessing.get_context("fork")
        begun = context.Event()
        child = context.Process(target=lambda: (begun.set(), time.sleep(60)))
        child.start()
        assert begun.wait(30)
        child.terminate()
        child.join(30)
        assert child.exitcode == -signal.SIGTERM
        assert not guard.asked_to_stop


def test_a_guard_that_nobody_has_any_more_does_not_swallow_signals(tmp_path):
    training, guard = built("plain", tmp_path / "run")
    take_step(training, guard, next(guard))
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    guard._journal.close()
    del training, guard
    gc.collect()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_two_guards_at_once(tmp_path, mine):
    """Whichever is closed first, a signal reaches what is left."""
    for number, first_closes in enumerate((True, False)):
        pairs = [built("plain", tmp_path / f"{number}{place}") for place in range(2)]
        for training, guard in pairs:
            take_step(training, guard, next(guard))
        gone, left = pairs if first_closes else reversed(pairs)
        gone[1].close()
        next(left[1])
        mine.clear()
        ask()
        assert left[1].asked_to_stop and mine == []
        left[1].close()
        assert len(mine) == 1  # of the one that was asked
        ask()
        assert len(mine) == 2
        signal.signal(signal.SIGTERM, lambda *told: mine.append(told))


def test_none_is_listened_to_if_none_is_named_or_the_data_cannot_go_back(tmp_path):
    training, guard = built("plain", tmp_path / "run", signals=())
    batches = [make().stream.next_batch().data for _ in range(3)]
    plain = make()
    plain.stream = batches
    watched = guarded(plain, tmp_path / "b", recipe=recipe(can_rollback=False))
    for one, guard_ in ((training, guard), (plain, watched)):
        with guard_:
            take_step(one, guard_, next(guard_))
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_in_another_thread_there_are_no_signals(tmp_path):
    found = []

    def train():
        training, guard = built("plain", tmp_path / "run")
        found.append(run(training, guard))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == [expected("plain", tmp_path)]


@pytest.mark.parametrize("names", [("SIGKILL",), ("TERM",), (15,)])
def test_what_is_no_signal_to_be_caught_is_refused(tmp_path, names):
    with pytest.raises(ConfigError, match="signals has"):
        built("plain", tmp_path / "run", signals=names)
    with pytest.raises(ConfigError, match="grace_secs is 0"):
        built("plain", tmp_path / "run", grace_secs=0)


# ---- while it waits -----------------------------------------------------------------


def test_a_pause_ends_when_the_run_is_to_stop(tmp_path):
    slept = []
    pausing = Pausing(
        RealDisk(), tmp_path, sleep=slept.append, asked_to_stop=lambda: len(slept) == 3
    )
    with pytest.raises(PauseInterrupted):
        pausing.wait(lambda: 1000.0)
    assert len(slept) == 3


# ---- processes of their own ---------------------------------------------------------

PROGRAM = """
import os, signal, sys
from pathlib import Path
import torch
from foreshock.durable import RealDisk
from tests.guard.programs import take_step
from tests.guard.ranked import WRITING, Killing
from tests.guard.test_stop_signals import built

torch.set_num_threads(1)
run_dir, kill_at = Path(sys.argv[1]), int(sys.argv[2])
training, guard = built("plain", run_dir)
training.model.train()
for batch in guard:
    take_step(training, guard, batch)
    if kill_at and guard.step_number == 23:
        Killing(RealDisk, WRITING, kill_at, after=bool(kill_at % 2))
        os.kill(os.getpid(), signal.SIGTERM)
    print(guard.step_number, flush=True)
print(guard.digest(), flush=True)
"""


def started(tmp_path, kill_at=0):
    (tmp_path / "program.py").write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(tmp_path / "program.py"), str(tmp_path / "run"),
         str(kill_at)],
        env={**os.environ, "PYTHONPATH": str(TOP), "OMP_NUM_THREADS": "1"},
        cwd=TOP,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def test_a_script_that_does_not_care_ends_with_75_and_goes_on_when_started_again(tmp_path):
    """It has no `with`, no `except`, no `close`."""
    for step, name in (("9\n", "SIGTERM"), ("19\n", "SIGUSR1")):
        process = started(tmp_path)
        assert process.stdout is not None
        for line in process.stdout:
            if line == step:
                process.send_signal(signal.Signals[name])
                break
        _, err = process.communicate(timeout=200)
        assert process.returncode == 75, err
        assert "Traceback" not in err and f"stopped by {name} after step" in err
    process = started(tmp_path)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert out.splitlines()[-1] == expected("plain", tmp_path)


@pytest.mark.parametrize("kill_at", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 9))])
def test_killed_while_it_writes_the_last_snapshot(tmp_path, kill_at):
    process = started(tmp_path, kill_at)
    _, err = process.communicate(timeout=200)
    assert process.returncode == -signal.SIGKILL, err
    training, guard = built("plain", tmp_path / "run")
    assert guard.step_number in (0, 20, 23)  # 0: a slow writer had not written 20 yet
    assert run(training, guard) == expected("plain", tmp_path)


def test_the_last_snapshot_is_none_that_a_rollback_aims_at(tmp_path):
    options = {"recipe": recipe(cadence=Cadence(memory_steps=5, disk_steps=20))}
    training, guard = built("plain", tmp_path / "run", **options)
    stopped_at(training, guard, 23)
    _, resumed = built("plain", tmp_path / "run", **options)
    with resumed:
        health = {ref.step: ref.health.healthy for ref in resumed._attempts.refs()}
    assert health[23] is False and health[20] is True


def test_the_loss_of_the_step_in_hand_is_in_the_readings(tmp_path):
    training, guard = built("scaler", tmp_path / "run")
    stopped_at(training, guard, 6)
    import foreshock  # noqa: PLC0415 - `open` only

    with foreshock.open(tmp_path / "run") as data:
        assert list(data.read("loss/global").steps) == [1, 2, 3, 4, 5, 6]
