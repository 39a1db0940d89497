"""The recovery benchmark on damage, full disks and time: what it counts, and that it can."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.recovery import corrupt, full, kill, rollback, stall
from benchmarks.recovery.corrupt import Subject, corrupt_trial, judged, plain_subject
from benchmarks.recovery.damage import KINDS, damage
from benchmarks.recovery.figures import corrupt_figures, full_figures
from benchmarks.recovery.fingerprint import fingerprint
from benchmarks.recovery.power import RUN, Simulated
from foreshock.durable import REAL_DISK
from foreshock.outage import WaitingLog
from tests.snapshots.sharded_by_hand import write_by_hand

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return plain_subject(tmp_path_factory.mktemp("plain") / "snapshots")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """As two ranks would write it that hold the same tensors."""
    folder = tmp_path_factory.mktemp("sharded") / "snapshots"
    state = corrupt.plain_state(folder, seed=1)
    expected: dict[str, str] = {}
    for step in range(1, corrupt.NUM_SNAPSHOTS + 1):
        corrupt._step(state.model, state.optimizer, step)
        tree = corrupt._tree(state.model, state.optimizer, step)
        ref = write_by_hand(REAL_DISK, folder, corrupt.ref_of(step), tree, 2)
        expected[ref.id] = fingerprint([tree, {"rank": 0, "state": [0.5, None]}])
    return Subject("sharded", folder, list(expected), expected)


# ---- damage ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "sharded"])
def test_what_is_whole_is_the_same_and_damage_is_not_accepted(
    kind: str, plain: Subject, sharded: Subject
) -> None:
    subject = {"plain": plain, "sharded": sharded}[kind]
    restore = {"plain": corrupt.restore_plain, "sharded": corrupt.restore_sharded}[kind]
    newest = subject.names[-1]
    found = judged(lambda: restore(subject.folder, newest), newest, subject.expected)
    assert found == {"outcome": "same", "said": newest}
    outcomes = {corrupt_trial(f"corrupt/{kind}/{at}", subject)["outcome"] for at in range(12)}
    assert outcomes == {"older taken" if kind == "plain" else "refused"}


def test_a_restore_that_accepts_damage_is_counted(
    plain: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that verifies nothing: it gives whatever bytes are there."""

    def trusting(folder: Path, newest: str) -> tuple[str, str]:
        files = sorted((folder / newest).iterdir())
        return newest, fingerprint([one.read_bytes() for one in files])

    newest = plain.names[-1]
    _, digest = trusting(plain.folder, newest)
    subject = plain._replace(expected={newest: digest})
    monkeypatch.setattr(corrupt, "restore_plain", trusting)
    kept = {f"corrupt/plain/{at}": corrupt_trial(f"k/{at}", subject) for at in range(8)}
    counted = corrupt_figures(kept)
    assert (counted["corrupt_trials"], counted["corrupt_accepted"]) == (8, 8)
    assert counted["corrupt_failures"] == kept


def test_an_error_of_another_kind_is_counted(plain: Subject) -> None:
    def crashing() -> tuple[str, str]:
        raise KeyError("structure")

    found = judged(crashing, "x", plain.expected)
    assert found["outcome"] == "crashed"
    assert corrupt_figures({"corrupt/plain/0": found})["corrupt_crashed"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_each_damage_changes_something(
    kind: str, plain: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.recovery.damage.KINDS", {kind: KINDS[kind]})
    folder = shutil.copytree(plain.folder, tmp_path / "snapshots")
    said = damage(folder, plain.names[-1], plain.names[:-1], np.random.default_rng(0))
    assert said.startswith(f"{kind}: ")
    whole = [
        {p.name: p.read_bytes() for p in (f / plain.names[-1]).iterdir()}
        for f in (folder, plain.folder)
    ]
    assert whole[0] != whole[1]


def test_the_fingerprint_sees_every_value() -> None:
    tree: dict[str, Any] = {"w": torch.ones(3), "n": np.arange(2), "s": [1, 2.0, None, "x"]}
    same = {"s": [1, 2.0, None, "x"], "n": np.arange(2), "w": torch.ones(3)}
    assert fingerprint(tree) == fingerprint(same)
    others = [
        tree | {"w": torch.ones(3).double()},
        tree | {"w": torch.ones(3, 1)},
        tree | {"w": torch.tensor([1.0, 1.0, -1.0])},
        tree | {"n": np.arange(2.0)},
        tree | {"s": [1, 2, None, "x"]},
        tree | {"s": [1, 2.0, None]},
        {"w": torch.ones(3)},
    ]
    assert len({fingerprint(one) for one in [tree, *others]}) == len(others) + 1
    assert fingerprint(torch.tensor([1.0, 2.0])) != fingerprint(torch.tensor([2.0, 1.0]))
    zeros = [torch.tensor([0.0]), torch.tensor([-0.0])]
    assert fingerprint(zeros[0]) != fingerprint(zeros[1])


# ---- full disks --------------------------------------------------------------------------


def full_keys(disk: str, reference: Simulated, text: Path) -> dict[str, Any]:
    """The first trial on such a disk."""
    for at in range(20):
        rng = kill.rng_of(f"disk_full/{at:04d}")
        rng.integers(reference.num_until_begun + 1, reference.num_changes)
        rng.choice([0, int(rng.integers(1, 4000))])
        if (rng.random() < 0.5) == (disk == "simulated"):
            return full.full_trial(f"disk_full/{at:04d}", reference, text.read_bytes())
    raise AssertionError


@pytest.mark.parametrize("disk", ["simulated", "real"])
def test_a_full_disk_loses_nothing(disk: str, reference: Simulated, text: Path) -> None:
    found = full_keys(disk, reference, text)
    assert found["disk"] == disk and found["full_steps"]
    assert found["lost"] == [] and found["bitexact"]
    assert full_figures({"disk_full/0": found})["disk_full_failed"] == 0


def test_decisions_that_a_full_disk_swallows_are_counted(
    reference: Simulated, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = WaitingLog.put

    def forgetful(this: WaitingLog, record: dict[str, Any], *, durable: bool) -> None:
        put(this, record, durable=durable)
        this.waiting.clear()

    monkeypatch.setattr(WaitingLog, "put", forgetful)
    disk = full.FillingSimulated(reference.num_until_begun + 20, 0)
    rng = np.random.default_rng(7)
    found = full._trial(rng, reference, text.read_bytes(), disk, RUN)
    assert found["full_steps"] and not found["died"]
    assert found["lost"]
    assert full_figures({"disk_full/0": found})["disk_full_failed"] == 1


def test_a_training_that_stops_on_a_full_disk_is_counted(
    reference: Simulated, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(this: WaitingLog, record: dict[str, Any], *, durable: bool) -> None:
        this._log.append(b"x", durable=durable)

    disk = full.FillingSimulated(reference.num_until_begun + 20, 0)
    monkeypatch.setattr(
        WaitingLog, "_flush", lambda this, sync: this._log.append(b"", durable=True)
    )
    monkeypatch.setattr(WaitingLog, "put", stopping)
    found = full._trial(np.random.default_rng(7), reference, text.read_bytes(), disk, RUN)
    assert found["lost"][0].startswith("training did not go on: OSError")
    assert not found["bitexact"]


# ---- time, and the whole -------------------------------------------------------------------


def test_going_back_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback, "SHAPES", {"tiny": (16, 1)})
    found = rollback.rollback_secs("tiny", rounds=1)
    assert all(secs > 0 for secs in found["secs"].values())
    assert found["secs"].keys() >= {"memory", "disk_warm", "disk_cold", "torch_load_warm"}
    assert found["secs"].keys() >= {"torch_load_cold", "torch_load_mmap_warm", "copy"}


def test_every_variant_restores_the_state(tmp_path: Path) -> None:
    states = rollback.States((16, 1), tmp_path)
    expected = fingerprint([states.model.state_dict(), states.optimizer.state_dict()])
    for restore in (states.memory, states.disk, states.torch_load, states.torch_load_mmap):
        with torch.no_grad():
            for parameter in states.model.parameters():
                parameter.add_(1.0)
        restore()
        now = fingerprint([states.model.state_dict(), states.optimizer.state_dict()])
        assert now == expected, restore


def test_stalls_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "SHAPES", {"tiny": (16, 1, 2, 16)})
    found = stall.stall("tiny", steps=32)
    assert found["num_steps"]["memory"] and found["num_steps"]["durable"]
    assert found.keys() >= {"memory", "memory_and_disk", "background"}


def test_the_excess_is_that_of_steps_with_a_snapshot() -> None:
    times = [stall.Times(1.0, 0.1, 0.1, "plain", False)] * 5
    times += [stall.Times(1.5, 0.6, 0.4, "memory", False)] * 3
    assert stall._excess(times, "memory", lambda one: one.between) == pytest.approx(0.5)
    assert stall._excess(times, "memory", lambda one: one.cpu) == pytest.approx(0.3)
    assert stall._excess(times, "durable", lambda one: one.cpu) == 0.0
