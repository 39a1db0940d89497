"""Durable snapshots behind the training's back."""

import threading
from pathlib import Path

import pytest
import torch

from foreshock.core.retention import Retention
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.durable import RealDisk
from foreshock.snapshots import shelf as shelf_module
from foreshock.snapshots.codec import digest
from foreshock.snapshots.memory import MemoryRing
from foreshock.snapshots.shelf import Shelf
from tests.simulated_disk import PowerLoss, SimulatedDisk, disk_full


def ref(step: int) -> SnapshotRef:
    return SnapshotRef(
        id=f"{step:08d}-a00001", attempt=1, step=step, position=0, durable=False, digest="",
        health=Health(),
    )  # fmt: skip


class Gated:
    """A real disk whose writes wait until they are let through."""

    def __init__(self) -> None:
        self.disk, self.gate, self.fails = RealDisk(), threading.Event(), False

    def __getattr__(self, name):
        return getattr(self.disk, name)

    def write(self, path, chunks):
        assert self.gate.wait(60)
        if self.fails:
            raise disk_full()
        self.disk.write(path, chunks)


@pytest.fixture
def gated(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf_module, "_CONCURRENT_DISKS", (Gated,))
    (tmp_path / "snapshots").mkdir()
    disk = Gated()
    yield disk, Shelf(disk, tmp_path / "snapshots", Retention(), asynchronous=True)
    disk.gate.set()


def test_training_goes_on_while_it_is_written(gated):
    disk, shelf = gated
    live, ring = torch.zeros(1000), MemoryRing(1)
    held = ring.put(ref(0), {"w": live}, {"a": 1}, [])
    expected = digest({"w": live})
    shelf.write(held)
    assert shelf.collect() is None
    assert shelf.writing is held
    assert held.ref.durable  # it counts as what it is about to be
    with pytest.raises(RuntimeError, match="has not been collected"):
        shelf.write(held)
    for step in range(1, 5):  # the live state changes, and so does the ring
        live += 1
        ring.put(ref(step), {"w": live}, {"a": 1}, [])
        ring.settle()
    assert shelf.refs() == ([], [])
    disk.gate.set()
    written = shelf.collect(wait=True)
    assert written.error is None
    assert written.name == ref(0).id
    assert written.result == sum(
        path.stat().st_size for path in (shelf.store._folder / ref(0).id).iterdir()
    )
    tree = shelf.store.read(ref(0).id)
    assert digest(tree["training"]) == tree["digest"] == expected
    assert shelf.collect() is None
    assert shelf.writing is None
    shelf.close()


def test_a_write_that_fails_leaves_the_one_in_memory(gated):
    disk, shelf = gated
    held = MemoryRing(1).put(ref(0), {"w": torch.zeros(3)}, None, [])
    disk.fails = True
    disk.gate.set()
    shelf.write(held)
    written = shelf.collect(wait=True)
    assert isinstance(written.error, OSError)
    assert not held.ref.durable
    assert not held.locked
    assert list(shelf.store._folder.iterdir()) == []
    disk.fails = False
    shelf.write(held)
    assert shelf.collect(wait=True).error is None
    shelf.close()


def test_what_is_dropped_is_gone_at_once_and_removed_after_the_write(gated):
    disk, shelf = gated
    ring = MemoryRing(2)
    disk.gate.set()
    shelf.write(ring.put(ref(0), {"w": torch.zeros(3)}, None, []))
    shelf.collect(wait=True)
    disk.gate.clear()
    shelf.write(ring.put(ref(10), {"w": torch.ones(3)}, None, []))
    shelf.drop([ref(0).id])
    assert shelf.refs() == ([], [])
    assert (shelf.store._folder / ref(0).id).exists()
    disk.gate.set()
    shelf.close()
    assert not (shelf.store._folder / ref(0).id).exists()


def test_other_disks_are_written_at_once(tmp_path):
    disk = SimulatedDisk()
    disk.make_dir(Path("/run/snapshots"))
    shelf = Shelf(disk, Path("/run/snapshots"), Retention(), asynchronous=True)
    shelf.write(MemoryRing(1).put(ref(0), {"w": torch.zeros(3)}, None, []))
    assert shelf.collect().error is None


def test_after_a_power_loss_in_any_write_there_is_all_of_it_or_nothing():
    held = MemoryRing(1).put(ref(0), {"w": torch.randn(30)}, {"a": [1.5]}, [])
    folder = Path("/run/snapshots")

    def fresh():
        disk = SimulatedDisk()
        disk.make_dir(folder)
        return disk, Shelf(disk, folder, Retention(), asynchronous=False)

    disk, shelf = fresh()
    before = disk.num_changes
    shelf.write(held)
    total = disk.num_changes - before
    outcomes = set()
    for changes in range(total + 1):
        for seed in range(8):
            disk, shelf = fresh()
            disk.fail_after(changes, PowerLoss(), seed=seed)
            try:
                shelf.write(held)
            except PowerLoss:
                held.locked = False
            after = Shelf(disk.crash(seed), folder, Retention(), asynchronous=False)
            refs, objections = after.refs()
            assert not objections
            for one in refs:
                assert digest(after.store.read(one.id)["training"]) == digest(held.training())
            outcomes.add((changes == total, len(refs)))
    assert (True, 0) not in outcomes  # once it has returned, it is there
    assert {(False, 0), (True, 1)} <= outcomes
