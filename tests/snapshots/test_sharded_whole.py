"""Sharded snapshots beside those of one process: listed together, read whole, removed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from foreshock.core.errors import SnapshotError
from foreshock.durable import REAL_DISK
from foreshock.snapshots.damage import DamagedError
from foreshock.snapshots.disk import DiskStore
from foreshock.snapshots.labels import blake2b
from tests.snapshots.sharded_by_hand import ref_of, write_by_hand


def run_tree(seed: int) -> dict[str, Any]:
    weight = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
    return {
        "training": {"model": {"w": weight, "tied": weight}},
        "watching": {"step": seed},
        "labels": [],
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_by_hand(REAL_DISK, tmp_path, ref_of(2), run_tree(2), 3)
    DiskStore(REAL_DISK, tmp_path).write(ref_of(3, "0" * 32), run_tree(3))
    write_by_hand(REAL_DISK, tmp_path, ref_of(4), run_tree(4), 1)
    return tmp_path


def test_both_kinds_are_listed_with_their_sizes(folder: Path) -> None:
    found, objections = DiskStore(REAL_DISK, folder).stored()
    assert [one.ref.step for one in found] == [2, 3, 4]
    assert objections == []
    for one in found:
        files = (folder / one.ref.id).iterdir()
        sizes = [path.stat().st_size for path in files if path.name != "manifest.json"]
        assert one.size_bytes == sum(sizes)


def test_the_ranks_own_states_stand_where_replicas_have_them(folder: Path) -> None:
    store = DiskStore(REAL_DISK, folder)
    three = store.read(ref_of(2).id)["training"]
    assert three["rank"] == {"ranks": [0, 1, 2]}
    assert three["state"] == {"ranks": [[0.5, None]] * 3}
    one = store.read(ref_of(4).id)["training"]
    assert (one["rank"], one["state"]) == (0, [0.5, None])
    for step, training in ((2, three), (4, one)):
        expected = run_tree(step)["training"]["model"]["w"]
        assert torch.equal(training["model"]["w"], expected)
        assert torch.equal(training["model"]["tied"], expected)


def test_what_was_loaded_must_equal_what_is_live(folder: Path) -> None:
    """Of a sharded one the tree itself is the measure, of the other its digests are."""
    store = DiskStore(REAL_DISK, folder)
    sharded, plain = store.load(ref_of(2).id), store.load(ref_of(3).id)
    assert (sharded.num_ranks, sharded.digests, sharded.own) == (3, (), {})
    assert (plain.num_ranks, plain.digests) == (1, ("0" * 32,))


@pytest.mark.parametrize("place", range(0, 2000, 97))
def test_no_damaged_manifest_is_listed(folder: Path, place: int) -> None:
    path = folder / ref_of(2).id / "manifest.json"
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1
    path.write_bytes(data)
    found, (objection,) = DiskStore(REAL_DISK, folder).stored()
    assert [one.ref.step for one in found] == [3, 4]
    assert objection.id == ref_of(2).id
    with pytest.raises(SnapshotError):
        DiskStore(REAL_DISK, folder).read(ref_of(2).id)


def test_a_sealed_manifest_of_other_fields_is_damaged(folder: Path) -> None:
    path = folder / ref_of(2).id / "manifest.json"
    body = json.loads(path.read_text())["body"]
    body["files"]["rank-00000.json"][0] = -1
    text = json.dumps(body, separators=(",", ":")).encode()
    path.write_bytes(b'{"blake2b":"' + blake2b([text]).encode() + b'","body":' + text + b"}")
    _, (objection,) = DiskStore(REAL_DISK, folder).stored()
    assert objection.lasting


def test_a_tree_that_is_no_runs_is_refused(tmp_path: Path) -> None:
    write_by_hand(REAL_DISK, tmp_path, ref_of(2), {"w": torch.ones(2)}, 2)
    with pytest.raises(DamagedError, match="not that of a run"):
        DiskStore(REAL_DISK, tmp_path).read(ref_of(2).id)


def test_one_is_removed_like_the_other(folder: Path) -> None:
    store = DiskStore(REAL_DISK, folder)
    store.remove_all([ref_of(2).id, ref_of(3).id])
    assert [one.name for one in folder.iterdir()] == [ref_of(4).id]
    assert [one.ref.step for one in store.stored()[0]] == [4]
