"""Sharded snapshots over a power loss or a full disk at any moment: the old or the new, whole."""

from pathlib import Path

import pytest
import torch

from foreshock.core.errors import SnapshotError
from foreshock.durable import clean_leftovers
from foreshock.snapshots.sharded_sealed import MANIFEST
from foreshock.snapshots.sharded_store import ShardedStore
from tests.simulated_disk import PowerLoss, SimulatedDisk, disk_full
from tests.snapshots.sharded_by_hand import live_tree, ref_of, write_by_hand

FOLDER = Path("/run/snapshots")
OLD, NEW = ref_of(1), ref_of(2)


def disk_with_old(world: int) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dir(FOLDER)
    write_by_hand(disk, FOLDER, OLD, live_tree(1), world)
    return disk


def write_new(disk: SimulatedDisk, world: int) -> None:
    if world == 1:
        ShardedStore(disk, FOLDER).write(NEW, live_tree(2), {"rank": 0})
    else:
        write_by_hand(disk, FOLDER, NEW, live_tree(2), world)


def changes(world: int) -> int:
    disk = disk_with_old(world)
    before = disk.num_changes
    write_new(disk, world)
    return disk.num_changes - before


def accepted(disk: SimulatedDisk) -> list[int]:
    """The steps of the snapshots that a resume would take, each whole."""
    store = ShardedStore(disk, FOLDER)
    found, objections = store.refs()
    assert objections == []
    for ref in found:
        tree = live_tree(9)
        store.read_into(ref.id, tree)
        assert store.digest(tree) == store.digest(live_tree(ref.step)) == ref.digest
        assert torch.equal(tree["w"], live_tree(ref.step)["w"])
    return [ref.step for ref in found]


@pytest.mark.parametrize(
    ("world", "num_seeds"),
    [(1, 2), (3, 2), *(pytest.param(world, 40, marks=pytest.mark.slow) for world in (1, 3))],
)
def test_power_loss_at_every_change(world: int, num_seeds: int) -> None:
    seen = []
    num_changes = changes(world)
    for at in range(num_changes + 1):
        for seed in range(num_seeds):
            disk = disk_with_old(world)
            disk.fail_after(at, PowerLoss(), seed=seed)
            if at < num_changes:
                with pytest.raises(PowerLoss):
                    write_new(disk, world)
            else:
                write_new(disk, world)
            after = disk.crash(seed)
            steps = accepted(after)
            assert steps in ([1], [1, 2])
            seen.append((at, steps))
            clean_leftovers(after, FOLDER)
            assert accepted(after) == steps
            if steps == [1]:
                write_new(after, world)  # what was left behind is in nobody's way
                assert accepted(after) == [1, 2]
    at_end = [steps for at, steps in seen if at == num_changes]
    assert at_end == [[1, 2]] * num_seeds
    assert (num_changes - 3, [1, 2]) not in seen  # before it has its name


def test_a_kill_leaves_what_the_next_write_clears() -> None:
    for at in range(changes(3)):
        disk = disk_with_old(3)
        disk.fail_after(at, PowerLoss())
        with pytest.raises(PowerLoss):
            write_new(disk, 3)
        disk.kill_process()
        if accepted(disk) == [1]:
            write_new(disk, 1)
            assert len(disk.list(FOLDER / NEW.id)) == 3  # and none of the other ranks' files
        assert accepted(disk) == [1, 2]


def test_a_full_disk_at_every_change() -> None:
    num_changes = changes(1)
    for at in range(num_changes - 1):  # the last, the sync of the name, comes too late
        disk = disk_with_old(1)
        disk.fail_after(at, disk_full())
        with pytest.raises(OSError, match="snapshot 00000002-a00001 cannot be written"):
            write_new(disk, 1)
        assert disk.list(FOLDER) == [OLD.id]
        write_new(disk, 1)
        assert accepted(disk) == [1, 2]


def test_removal_over_a_power_loss_at_every_change() -> None:
    num_changes = 2
    for at in range(num_changes):
        for seed in range(8):
            disk = disk_with_old(3)
            write_new(disk, 3)
            disk.fail_after(at, PowerLoss(), seed=seed)
            with pytest.raises(PowerLoss):
                ShardedStore(disk, FOLDER).remove(OLD.id)
            assert accepted(disk.crash(seed)) in ([1, 2], [2])
    disk = disk_with_old(3)
    ShardedStore(disk, FOLDER).remove(OLD.id)
    assert disk.list(FOLDER) == []


def test_an_id_is_written_once() -> None:
    disk = disk_with_old(1)
    with pytest.raises(OSError, match="exists already"):
        ShardedStore(disk, FOLDER).write(OLD, live_tree(2), {})
    assert accepted(disk) == [1]
    with pytest.raises(SnapshotError, match="is no id"):
        ShardedStore(disk, FOLDER).write(ref_of(3).__class__(**{**vars(OLD), "id": "../x"}), {}, {})


def test_bytes_are_balanced_and_written_once() -> None:
    disk = SimulatedDisk()
    disk.make_dir(FOLDER)
    tree = {f"w{i}": torch.randn(40 + 17 * i, 9) for i in range(12)} | {"s": torch.tensor(1)}
    write_by_hand(disk, FOLDER, OLD, tree, 5)
    path = FOLDER / OLD.id
    sizes = [disk.size(path / name) for name in disk.list(path) if name.endswith("safetensors")]
    total = sum(one.nbytes for one in tree.values())
    assert sum(sizes) < 1.05 * total
    assert max(sizes) < 1.3 * min(sizes)
    names = disk.list(path)
    assert MANIFEST in names and len(names) == 11
    store = ShardedStore(disk, FOLDER)
    other = {name: torch.zeros_like(one) for name, one in tree.items()}
    store.read_into(OLD.id, other)
    assert all(torch.equal(one, other[name]) for name, one in tree.items())
