"""Overrides, edits of the state and other orders in a running Guard: exact, and only once.

A run with overrides in force, rolled back, killed and resumed, must be the run that was not.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from foreshock.durable import RealDisk
from foreshock.recipes import Cadence
from tests.guard.programs import guarded, make, recipe, run, take_step
from tests.simulated_disk import PowerLoss, SimulatedDisk

RUN = Path("/run/a")
CADENCE = Cadence(memory_steps=5, memory_keep=3, disk_steps=10, disk_keep=3)
ORDER_AT, BEGINS, END = 12, 14, 36
"""Ordered after this step, for this step on; the last step."""


def order(control, name, number=0, first_step=None, samples=8):
    """Order one thing as an action of a plan does."""
    first_step = BEGINS if first_step is None else first_step
    control.begin(1, number)
    match name:
        case "rate":
            control.scale_lr(0.2, first_step, 6, 8)
        case "clip":
            control.tighten_clip(0.3, first_step, 6, 8)
        case "eps":
            control.raise_epsilon(1e4, 0.0, first_step, 9)
        case "beta2":
            control.lower_beta2(0.9, first_step, 9)
        case "embedding":
            control.shrink_embedding_gradients(0.1, first_step, 6, 8)
        case "reset":
            control.reset_moments(first_step, (), True)
        case "reset a group":
            control.reset_moments(first_step, ("mlp",), False)
        case "noise":
            control.perturb_weights(0.01, first_step)
        case "order":
            control.perturb_order(samples * (first_step - 1))
        case "all":
            for place, one in enumerate(ADAM):
                order(control, one, place, first_step, samples)


ADAM = ["rate", "clip", "eps", "beta2", "embedding", "reset", "reset a group", "noise", "order"]


def go(name, disk=None, run_dir=RUN, *, back=None, last=END, **built):
    """Train to the end, ordering `name` on the way; with `back`, go back once to that step."""
    accumulate = built.pop("accumulate", 1)
    training = make(tracked=True, scheduler="lambda", **built)
    disk = disk if disk is not None else SimulatedDisk()
    guard = guarded(
        training,
        run_dir,
        disk=disk,
        resume=disk.exists(run_dir / "run.json"),
        recipe=recipe(cadence=CADENCE, watch_only=True),
        clip=1.0,
        accumulate=accumulate,
        max_steps=last,
    )
    gone = []

    training.model.train()
    with guard:
        for batch in guard:
            if guard.step_number == ORDER_AT and guard._stepping.micro_step == 0:
                order(guard._control, name, samples=8 * accumulate)
            take_step(training, guard, batch)
            if back is not None and guard.step_number == back[0] and not gone:
                gone.append(True)
                guard._attempts.go_back(at_most_step=back[1])
                guard._stepping.forget()
                guard._feed.take_positions()
        return guard.digest(), guard, training


known: dict[str, str] = {}


def expected(name, **built):
    key = json.dumps([name, built], sort_keys=True)
    if key not in known:
        known[key] = go(name, **built)[0]
    return known[key]


@pytest.mark.parametrize("name", ADAM)
def test_it_changes_the_run_from_its_first_step_on(name):
    assert expected(name, last=BEGINS - 1) == expected("nothing", last=BEGINS - 1)
    assert expected(name, last=BEGINS) != expected("nothing", last=BEGINS)


BUILT = [
    {"optimizer": "fused"},
    {"optimizer": "adamw", "scaler": True, "accumulate": 2},
    {"optimizer": "fused", "scaler": True, "accumulate": 2},
]


BACKS = [(20, 15), (24, 12), (15, 10), (14, 0), (35, 25)]


@pytest.mark.parametrize("back", [(20, 15), (15, 10)])
@pytest.mark.parametrize("built", BUILT[1:])
def test_a_replay_is_exact(built, back):
    """From before the orders hold, and from within; what was ordered is not forgotten."""
    digest, guard, _ = go("all", back=back, **built)
    assert guard.attempt == 2
    assert digest == expected("all", **built)


@pytest.mark.slow
@pytest.mark.parametrize("back", BACKS)
@pytest.mark.parametrize("built", BUILT)
def test_a_replay_is_exact_from_anywhere(built, back):
    test_a_replay_is_exact(built, back)


@pytest.mark.parametrize("optimizer", ["fused_sgd", pytest.param("sgd", marks=pytest.mark.slow)])
def test_a_replay_is_exact_with_momentum_alone(optimizer):
    for name in ("rate", "clip", "embedding", "reset", "noise"):
        plain = expected(name, optimizer=optimizer, last=20)
        assert plain != expected("nothing", optimizer=optimizer, last=20)
        assert go(name, back=(18, 10), optimizer=optimizer, last=20)[0] == plain


def crash_and_resume(changes, **built):
    disk = SimulatedDisk()
    disk.fail_after(changes, PowerLoss(), seed=changes)
    with pytest.raises(PowerLoss):
        go("all", disk, **built)
    digest, guard, _ = go("all", disk.crash(changes), **built)
    assert digest == expected("all", **built)
    ordered = [(r["kind"], r["key"]) for r in guard.records if "plan1/" in str(r.get("key"))]
    ordered = [one for one in ordered if one[0] != "state_edited"]
    assert len(ordered) == len(set(ordered)) == len(ADAM)
    edited = [(r["attempt"], r["key"]) for r in guard.records if r["kind"] == "state_edited"]
    assert len(edited) == len(set(edited))


def num_changes():
    disk = SimulatedDisk()
    go("all", disk)
    return disk.num_changes


def test_power_loss_anywhere_changes_nothing():
    total = num_changes()
    for changes in range(total // 5, total, total // 3):
        crash_and_resume(changes)


@pytest.mark.slow
def test_power_loss_at_every_change_changes_nothing():
    for changes in range(1, num_changes()):
        crash_and_resume(changes)


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from foreshock.durable import RealDisk
from tests.guard import test_overrides as here

inner = here.take_step
def take_step(training, guard, batch):
    inner(training, guard, batch)
    if guard.step_number == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
here.take_step = take_step
here.go("all", RealDisk(), Path(sys.argv[1]), optimizer="fused", scaler=True)
"""


@pytest.mark.parametrize(
    "step", [BEGINS, *(pytest.param(one, marks=pytest.mark.slow) for one in (13, 15, 22))]
)
def test_kill_9_changes_nothing(tmp_path, step):
    run_dir = tmp_path / "run"
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(run_dir), str(step)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=root, check=False, env={**os.environ}
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    digest, guard, _ = go("all", RealDisk(), run_dir, optimizer="fused", scaler=True)
    assert guard.attempt == 2
    assert digest == expected("all", optimizer="fused", scaler=True)


def test_nobody_else_sees_an_override():
    """After the run settings are the loop's own, and the schedule knows of nothing."""
    trainings = [go(name, last=20)[2] for name in ("all", "nothing")]
    ours, theirs = (one.optimizer.state_dict()["param_groups"] for one in trainings)
    assert ours == theirs
    ours, theirs = (one.scheduler.state_dict() for one in trainings)
    assert ours == theirs


def test_an_edit_is_not_in_the_snapshot_before_it_and_is_made_once(monkeypatch):
    """Noise is no idempotent edit: a snapshot that held it would get it twice."""
    monkeypatch.setattr("tests.guard.test_overrides.BEGINS", 21)  # step 20 has a durable snapshot
    plain = go("noise", last=30)[0]
    assert plain != go("nothing", last=30)[0]
    assert go("noise", back=(21, 20), last=30)[0] == plain
    assert go("noise", back=(28, 20), last=30)[0] == plain
    disk = SimulatedDisk()
    stopped, guard, _ = go("noise", disk, last=20)
    assert stopped == go("nothing", last=20)[0]
    assert not [record for record in guard.records if record["kind"] == "state_edited"]
    assert go("noise", disk, last=30)[0] == plain


def test_the_order_changes_behind_the_position_and_nothing_is_lost():
    plain = go("nothing", last=20)[2].stream
    digest, _, training = go("order", last=20)
    position = 8 * (BEGINS - 1)
    ours = [training.stream.order.locate(one) for one in range(4000)]
    theirs = [plain.order.locate(one) for one in range(4000)]
    assert ours[:position] == theirs[:position]
    assert sorted(ours) == sorted(theirs)
    pairs = zip(ours[position:], theirs[position:], strict=True)
    assert np.mean([one != other for one, other in pairs]) > 0.99
    assert digest == go("order", back=(18, 12), last=20)[0]


def test_what_is_set_aside_stays_so_in_another_order():
    training = make()
    guard = guarded(training, RUN, disk=SimulatedDisk())
    control, order_of = guard._control, training.stream.order
    control.begin(1, 0)
    control.quarantine(400, 480, "test")
    held = {order_of.locate(one)[1:] for one in range(400, 480)}
    control.begin(2, 0)
    control.perturb_order(80)
    given = [training.stream.next_batch() for _ in range(490)]
    seen = [(one.source, one.index) for batch in given for one in batch.ids]
    assert len(seen) == len(set(seen)) == 3920
    assert not held & set(seen)
    guard.close()


@pytest.mark.parametrize("scaler", [False, True])
def test_signals_tell_the_norm_as_it_came_and_the_clip_as_it_was(scaler):
    series = {}
    for name in ("nothing", "embedding", "clip"):
        _, guard, _ = go(name, scaler=scaler, last=BEGINS)
        line = guard.monitor.timeline
        series[name] = {
            key: float(line.values(f"{key}/global", BEGINS, BEGINS)[0])
            for key in ("grad_norm", "clip_share")
        }
    assert series["embedding"]["grad_norm"] == series["nothing"]["grad_norm"]
    assert series["clip"]["grad_norm"] == series["nothing"]["grad_norm"]
    share = 1 - min(1.0, 0.3 / (series["clip"]["grad_norm"] + 1e-6))
    assert series["clip"]["clip_share"] == pytest.approx(max(0.0, share), rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", "fused"])
def test_the_gate_judges_the_norm_as_it_came(optimizer):
    """A limit between the norm as it came and that of the shrunk gradients skips the update."""
    _, plain, _ = go("nothing", last=3, optimizer=optimizer)
    norm = float(plain.monitor.timeline.values("grad_norm/global", 3, 3)[0])
    training = make(tracked=True, scheduler="lambda", optimizer=optimizer)
    guard = guarded(training, RUN, disk=SimulatedDisk(), clip=1.0, max_steps=3, recipe=WATCHING)
    guard._control.shrink_embedding_gradients(1e-3, 3, None, 0)
    guard._control.limit_gate(0.9999 * norm, 3, 3)
    run(training, guard)
    assert [r["step"] for r in guard.records if r["kind"] == "skip"] == [3]


def test_a_loop_without_a_clip_begins_to_clip():
    used = []
    training = make(optimizer="sgd")
    guard = guarded(training, RUN, disk=SimulatedDisk(), max_steps=6)
    guard._control.tighten_clip(1e-3, 3, 2, 0)
    inner = training.optimizer.step

    def spy(*args, **kwargs):
        grads = [p.grad for p in training.model.parameters() if p.grad is not None]
        used.append(float(torch.nn.utils.get_total_norm(grads)))
        return inner(*args, **kwargs)

    training.optimizer.step = spy
    run(training, guard)
    assert [one <= 1.001e-3 for one in used] == [False, False, True, True, False, False]


def test_plans_with_every_action_are_carried_out_and_taken_up_again():
    """The actions as a plan has them: from JSON, through the catalog, under a real Recovery."""
    from foreshock.catalog import make as make_component  # noqa: PLC0415
    from foreshock.core.action import ActionCall  # noqa: PLC0415

    calls = [
        ActionCall(name="scale_lr", arguments={"factor": 0.5, "first_step": 3, "hold_steps": 2}),
        ActionCall(name="tighten_clip", arguments={"first_step": 3}),
        ActionCall(name="raise_epsilon", arguments={"first_step": 3, "factor": 10.0}),
        ActionCall(name="lower_beta2", arguments={"first_step": 3}),
        ActionCall(name="shrink_embedding_gradients", arguments={"first_step": 3}),
        ActionCall(name="reset_moments", arguments={"first_step": 3, "groups": ["mlp"]}),
        ActionCall(name="perturb_weights", arguments={"first_step": 3}),
        ActionCall(name="perturb_order", arguments={"position": 16}),
    ]
    training = make()
    disk = SimulatedDisk()
    guard = guarded(training, RUN, disk=disk, max_steps=2)
    said = []
    for number, call in enumerate(calls):
        told = ActionCall.from_json(json.loads(json.dumps(call.to_json())))
        action = make_component("actions", told.name, **told.arguments)
        assert action.needs <= guard.capabilities
        guard._control.begin(7, number)
        said += [action.apply(guard._control), action.apply(guard._control)]
    assert said[::2] == said[1::2]
    ordered = [r for r in guard.records if str(r.get("key")).startswith("plan7/")]
    assert len(ordered) == len(calls)
    before = guard._control.overrides
    run(training, guard)
    again = guarded(make(), RUN, disk=disk, resume=True)
    for step in range(1, 30):
        assert again._control.overrides.tuning(step) == before.tuning(step)
        assert again._control.lr_factor(step) == before.lr_factor(step)
        assert again._control.overrides.edits(step) == before.edits(step)
    stream = again._feed.stream
    assert [stream.order.locate(i) for i in range(99)] == [
        training.stream.order.locate(i) for i in range(99)
    ]
    again.close()


def test_an_order_for_a_step_that_has_passed_waits_for_it_to_come_again():
    training = make()
    guard = guarded(training, RUN, disk=SimulatedDisk(), max_steps=12, recipe=WATCHING)
    training.model.train()
    with guard:
        for batch in guard:
            take_step(training, guard, batch)
            if guard.step_number == 8 and guard.attempt == 1:
                guard._control.begin(1, 0)
                guard._control.perturb_weights(0.01, 7)
            if guard.step_number == 10 and guard.attempt == 1:
                assert not [r for r in guard.records if r["kind"] == "state_edited"]
                guard._attempts.go_back(at_most_step=5)
    edits = [(r["attempt"], r["step"]) for r in guard.records if r["kind"] == "state_edited"]
    assert edits == [(2, 6)]


WATCHING = dataclasses.replace(recipe(watch_only=True), cadence=CADENCE)
