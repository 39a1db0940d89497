"""The process or the power may go at any moment: the run ends as if neither had."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from foreshock.core.override import KINDS
from foreshock.data.stream import Stage
from foreshock.durable import RealDisk
from foreshock.probes.held_out_loss import HeldOutLoss
from foreshock.recipes import Cadence
from tests.guard.programs import (
    Sentences,
    clean_stages,
    guarded,
    loss_of,
    make,
    poisoned_stages,
    recipe,
    run,
)
from tests.simulated_disk import PowerLoss, SimulatedDisk

RUN = Path("/run/a")
DENSE = Cadence(memory_steps=5, memory_keep=3, disk_steps=10, disk_keep=2)
SPARSE = Cadence(memory_steps=5, memory_keep=3, disk_steps=40, disk_keep=2)


def spiked(guard, training):
    """Gradients that spike at some steps, and are NaN at others, each time they are taken."""
    step = guard.step_number + 1
    if step in (50, 51, 52, 53, 54, 71, 72, 90):
        factor = float("nan") if step in (71, 72) else 300.0
        weight = training.model.embedding.weight
        hook = weight.register_hook(lambda grad: (hook.remove(), grad * factor)[1])


def epochs():
    good, bad = Sentences(296, seed=1), Sentences(80, seed=2, poisoned=True)
    weights = {"good": 1, "bad": 20}
    return [
        Stage(name="first", sources={"good": good}),
        Stage(name="bad", sources={"good": good, "bad": bad}, weights=weights, num_samples=84),
        Stage(name="again", sources={"good": good}),
    ]


def held_out():
    data = Sentences(32, seed=9)
    batches = [torch.stack([data[8 * i + j] for j in range(8)]) for i in range(4)]
    return [HeldOutLoss(batches=batches, loss=loss_of)]


def go(disk, scenario, run_dir=RUN):
    """Run or resume a scenario to its end; the same call in every process of its life."""
    stages, hook, options, built = poisoned_stages(300, 80, 200), None, {}, {}
    cadence, lag_steps = SPARSE, 1
    match scenario:
        case "dense":
            cadence = DENSE
        case "lag":
            lag_steps = 3
        case "probes":
            options["probes"] = held_out()
        case "epochs":
            stages = epochs()
        case "skips":
            stages, hook, options = clean_stages(), spiked, {"max_steps": 100, "clip": 1.0}
            built = {"optimizer": "fused", "scaler": True}
        case "late":
            stages = poisoned_stages(344, 80, 200)  # just behind a durable snapshot
    training = make(stages=stages, tracked=True, scheduler="lambda", **built)
    guard = guarded(
        training,
        run_dir,
        disk=disk,
        resume=disk.exists(run_dir / "run.json"),
        recipe=recipe(cadence=cadence, lag_steps=lag_steps),
        **options,
    )
    return run(training, guard, before_step=hook), guard


SCENARIOS = ["dense", "lag", "probes", "epochs", "skips", "late"]
known: dict[str, tuple[str, int, int]] = {}


def untouched(scenario):
    if scenario not in known:
        disk = SimulatedDisk()
        digest, guard = go(disk, scenario)
        assert guard.book.incidents, scenario
        known[scenario] = digest, disk.num_changes, guard.num_quarantined
    return known[scenario]


def crash_and_resume(scenario, changes, *, again=None):
    expected, *_ = untouched(scenario)
    disk = SimulatedDisk()
    disk.fail_after(changes, PowerLoss(), seed=changes)
    with pytest.raises(PowerLoss):
        go(disk, scenario)
    disk = disk.crash(changes)
    if again is not None:
        disk.fail_after(again, PowerLoss(), seed=again)
        try:
            digest, guard = go(disk, scenario)
        except PowerLoss:
            digest, guard = go(disk.crash(again), scenario)
    else:
        digest, guard = go(disk, scenario)
    assert digest == expected
    check_once(guard, scenario)


def check_once(guard, scenario):
    """Nothing was decided or carried out twice."""
    records = guard._journal.records
    plans = [r["plan_id"] for r in records if r["kind"] == "plan"]
    assert plans == list(range(1, len(plans) + 1))
    done = [r["plan_id"] for r in records if r["kind"] == "plan_done"]
    assert done == plans
    for incident in guard.book.incidents:
        for record in incident.plans:
            assert record.done == len(record.plan.actions)
    aside = {r["key"]: r["entry"] for r in records if r["kind"] == "quarantined"}
    assert [entry["entry_id"] for entry in aside.values()] == list(aside)
    assert guard.num_quarantined == untouched(scenario)[2]
    ordered = [(r["kind"], r["key"]) for r in records if r["kind"] in KINDS]
    assert len(guard._control.overrides) == len(ordered) == len(set(ordered))


@pytest.mark.parametrize(
    ("scenario", "part"), [("dense", 1), ("dense", 2), ("dense", 3), ("epochs", 2), ("epochs", 3)]
)
def test_power_loss(scenario, part):
    _, total, _ = untouched(scenario)
    crash_and_resume(scenario, (2 * part + 1) * total // 8)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_power_loss_at_every_seventh_change(scenario):
    _, total, _ = untouched(scenario)
    for changes in range(1, total, 7):
        crash_and_resume(scenario, changes, again=5 + changes // 2 if changes % 2 else None)


@pytest.mark.slow
def test_power_loss_at_every_change_while_plans_are_carried_out():
    """From the first plan to the closing of the incident, one change after the other."""
    _, total, _ = untouched("dense")
    disk = SimulatedDisk()
    first = last = None

    class Watching:
        def __getattr__(self, name):
            return getattr(disk, name)

        def append(self, path, data):
            nonlocal first, last
            if b'"kind":"plan"' in data and first is None:
                first = disk.num_changes
            if b'"kind":"plan_done"' in data:
                last = disk.num_changes + 2
            disk.append(path, data)

    go(Watching(), "dense")
    assert first is not None and last is not None
    for changes in range(first, min(last, total)):
        crash_and_resume("dense", changes)


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from foreshock.durable import RealDisk
from tests.guard.test_crash import go

class Killing:
    def __init__(self, after):
        self.left, self.disk = after, RealDisk()
    def __getattr__(self, name):
        method = getattr(self.disk, name)
        if name not in ("write", "append", "truncate", "sync", "sync_dir", "replace", "remove",
                        "remove_tree", "make_dir"):
            return method
        def counted(*args):
            self.left -= 1
            if self.left == 0:
                if name == "write":
                    path, chunks = args
                    path.write_bytes(b"".join(map(bytes, chunks))[:100])
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*args)
        return counted

digest, guard = go(Killing(int(sys.argv[3])), sys.argv[1], Path(sys.argv[2]))
print(digest)
"""


def killed(run_dir, scenario, after):
    command = [sys.executable, "-W", "ignore", "-c", KILLED, scenario, str(run_dir), str(after)]
    root = Path(__file__).parents[2]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=root, check=False, env={**os.environ}
    )


def check_kills(tmp_path, scenario, moments):
    expected, *_ = untouched(scenario)
    for number, after in enumerate(moments):
        run_dir = tmp_path / f"run{number}"
        done = killed(run_dir, scenario, after)
        assert done.returncode == -signal.SIGKILL, done.stderr
        digest, guard = go(RealDisk(), scenario, run_dir)
        assert digest == expected
        check_once(guard, scenario)


def test_kill_9(tmp_path):
    _, total, _ = untouched("dense")
    check_kills(tmp_path, "dense", [total // 2])


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["dense", "epochs"])
def test_kill_9_at_ten_moments(tmp_path, scenario):
    _, total, _ = untouched(scenario)
    rng = np.random.default_rng(1)
    check_kills(tmp_path, scenario, sorted(rng.integers(2, total - 2, size=10).tolist()))


@pytest.mark.parametrize("kind", ["halted", "action_done", "incident_closed", "plan_done"])
def test_a_run_killed_while_it_halts_halts_again(tmp_path, kind):
    def make_it_halt(run_dir, resume):
        training = make(tracked=True)
        policy = recipe(cadence=DENSE, max_rollbacks=0)
        guard = guarded(training, run_dir, resume=resume, recipe=policy, max_steps=90)

        def hurt(guard, training):
            if guard.step_number >= 30:
                training.model.last_norm.weight.register_hook(lambda grad: grad + torch.nan)

        run(training, guard, before_step=hurt)
        return guard

    guard = make_it_halt(tmp_path / "run", resume=False)
    assert guard.halted
    path = tmp_path / "run/decisions.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    cut = len(kinds) - kinds[::-1].index(kind)
    path.write_text("".join(lines[:cut]))
    (tmp_path / "run/handover.md").unlink()
    again = make_it_halt(tmp_path / "run", resume=True)
    assert again.halted == guard.halted
    assert again.book.incidents[-1].outcome == "halted"
    assert len(again.book.incidents) == 1
