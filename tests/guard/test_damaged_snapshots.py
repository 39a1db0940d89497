"""A damaged snapshot is passed over with its reason, down to the last good one."""

import json
import shutil

import numpy as np
import pytest
import torch

from foreshock.core.errors import SnapshotError
from foreshock.recipes import Cadence
from foreshock.snapshots.labels import blake2b, canonical
from tests.guard.programs import guarded, make, recipe, run, take_step

RECIPE = recipe(
    cadence=Cadence(memory_steps=5, memory_keep=2, disk_steps=10, disk_keep=3, asynchronous=False)
)
NEWEST, STEPS = "00000030-a00001", 45


def flip(path, seed=0):
    data = bytearray(path.read_bytes())
    place = int(np.random.default_rng(seed).integers(len(data)))
    data[place] ^= 1 << seed % 8
    path.write_bytes(data)


def relabel(path):
    """A sound manifest that is another snapshot's."""
    body = json.loads(path.read_text())["body"]
    body["snapshot"]["id"] = "../../elsewhere"
    path.write_text(canonical({"blake2b": blake2b([canonical(body).encode()]), "body": body}))


def hollow(path):
    """A sound manifest with nothing in it."""
    body = {"format": 1}
    path.write_text(canonical({"blake2b": blake2b([canonical(body).encode()]), "body": body}))


def from_the_future(path):
    body = json.loads(path.read_text())["body"] | {"format": 2}
    path.write_text(canonical({"blake2b": blake2b([canonical(body).encode()]), "body": body}))


DAMAGES = {
    "a bit of the tensors": lambda p: flip(p / "tensors.safetensors", 3),
    "a bit of the manifest": lambda p: flip(p / "manifest.json", 4),
    "half of the tensors": lambda p: cut(p / "tensors.safetensors"),
    "half of the manifest": lambda p: cut(p / "manifest.json"),
    "no tensors": lambda p: (p / "tensors.safetensors").unlink(),
    "no manifest": lambda p: (p / "manifest.json").unlink(),
    "an empty manifest": lambda p: (p / "manifest.json").write_bytes(b""),
    "deep JSON": lambda p: (p / "manifest.json").write_text("[" * 100_000),
    "a list": lambda p: (p / "manifest.json").write_text("[]"),
    "null": lambda p: (p / "manifest.json").write_text('{"body":null,"blake2b":""}'),
    "another label": lambda p: relabel(p / "manifest.json"),
    "nothing in it": lambda p: hollow(p / "manifest.json"),
    "a newer format": lambda p: from_the_future(p / "manifest.json"),
}


def cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was killed at step 34, and the digest it would have ended with."""
    root = tmp_path_factory.mktemp("stopped")
    training = make(tracked=True)
    expected = run(training, guarded(training, root / "whole", max_steps=STEPS, recipe=RECIPE))
    training = make(tracked=True)
    guard = guarded(training, root / "run", max_steps=STEPS, recipe=RECIPE)

    def stop(guard, training):
        if guard.step_number == 34:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(training, guard, before_step=stop)
    return root / "run", expected


def resume(run_dir):
    training = make(tracked=True, seed=3)
    training.stream = make().stream
    guard = guarded(training, run_dir, max_steps=STEPS, resume=True, recipe=RECIPE)
    start = guard.step_number
    return run(training, guard), start, guard


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_it_is_passed_over_with_its_reason(tmp_path, stopped, damage):
    source, expected = stopped
    run_dir = shutil.copytree(source, tmp_path / "run")
    damage(run_dir / "snapshots" / NEWEST)
    digest, start, guard = resume(run_dir)
    assert start == 20
    assert digest == expected
    reasons = [r["reason"] for r in guard._journal.records if r["kind"] == "snapshot_passed_over"]
    assert len(reasons) == 1
    assert NEWEST in reasons[0]
    assert "\n" not in reasons[0]
    assert len(reasons[0]) < 400


def test_down_to_the_last_good_one(tmp_path, stopped):
    source, expected = stopped
    run_dir = shutil.copytree(source, tmp_path / "run")
    for seed, path in enumerate(sorted((run_dir / "snapshots").iterdir())[1:]):
        flip(path / "tensors.safetensors", seed)
    digest, start, _ = resume(run_dir)
    assert start == 0
    assert digest == expected


def test_none_is_left(tmp_path, stopped):
    source, _ = stopped
    run_dir = shutil.copytree(source, tmp_path / "run")
    for path in (run_dir / "snapshots").iterdir():
        flip(path / "tensors.safetensors")
    training = make(tracked=True)
    with pytest.raises(SnapshotError, match="no snapshot could be restored") as caught:
        guarded(training, run_dir, resume=True, recipe=RECIPE)
    message = str(caught.value)
    assert "\n" not in message
    assert NEWEST in message
    assert not any(m._forward_pre_hooks for m in training.model.modules())
    shutil.rmtree(run_dir / "snapshots")
    with pytest.raises(SnapshotError, match="there is none"):
        guarded(make(tracked=True), run_dir, resume=True, recipe=RECIPE)


@pytest.mark.slow
def test_no_single_bit_goes_unnoticed(tmp_path, stopped):
    source, _ = stopped
    for seed in range(100):
        run_dir = shutil.copytree(source, tmp_path / f"run{seed}")
        name = ["tensors.safetensors", "manifest.json"][seed % 2]
        flip(run_dir / "snapshots" / NEWEST / name, seed)
        training = make(tracked=True)
        with guarded(training, run_dir, resume=True, recipe=RECIPE) as guard:
            assert guard.step_number == 20


def test_a_look_back_reaches_the_disk_and_leaves_out_what_is_damaged(tmp_path):
    training = make()
    weight = next(training.model.parameters())
    weights, seen = {}, []
    with guarded(training, tmp_path / "run", recipe=RECIPE) as guard:
        for batch in guard:
            weights[guard.step_number] = weight.detach().clone()
            take_step(training, guard, batch)
            if guard.step_number == 35:
                break
        flip(tmp_path / "run/snapshots/00000020-a00001/tensors.safetensors")
        before = guard.digest()
        refs = guard._attempts.held()
        assert [ref.step for ref in sorted(refs, key=lambda ref: ref.step)][:3] == [0, 10, 20]
        seen = guard._attempts.look_at(refs, lambda: weight.detach().clone())
        assert guard.digest() == before
    assert sorted(ref.step for ref, _ in seen) == [0, 10, 25, 30]
    assert all(torch.equal(weights[ref.step], found) for ref, found in seen)
