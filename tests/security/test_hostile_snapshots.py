"""Snapshots and recipes from someone else: passed over or refused in one sentence."""

import pytest
import torch

from foreshock.core.errors import ConfigError, SnapshotError
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.durable import RealDisk
from foreshock.recipes import load, standard
from foreshock.snapshots.codec import decode, encode
from foreshock.snapshots.disk import DiskStore
from tests.guard.programs import guarded, make, run


def resume(folder):
    training = make()
    return run(training, guarded(training, folder, max_steps=23, resume=True))


# ---- snapshots


def rewrite_snapshots(folder, change):
    """Every snapshot with its tree changed, and a manifest that vouches for it."""
    store = DiskStore(RealDisk(), folder / "snapshots")
    for ref in store.refs()[0]:
        tree = store.read(ref.id)
        store.remove(ref.id)
        change(tree)
        store.write(ref, tree)


CHANGES = {
    "shapes": lambda tree: tree["training"]["model"]["state"].update(
        {name: torch.zeros(1) for name in tree["training"]["model"]["state"]}
    ),
    "unknown buffer": lambda tree: tree["training"]["model"]["buffers"].update(x=torch.ones(1)),
    "optimizer": lambda tree: tree["training"]["optimizer"].update(state={10**6: {}}),
    "random": lambda tree: tree["training"]["random"].update(torch=torch.zeros(3)),
    "stream": lambda tree: tree["training"].update(stream={"position": 10**30}),
    "labels": lambda tree: tree.update(labels=[{"id": "x", "step": float("inf")}]),
    "no watching": lambda tree: tree.update(watching=None),
    "recent": lambda tree: tree["watching"].update(recent=[[1, ["x"]]]),
    "timeline": lambda tree: tree["watching"]["monitor"].update(timeline={"steps": 3}),
    "detectors": lambda tree: tree["watching"]["monitor"].update(detectors=7),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_snapshot_that_does_not_fit_is_one_sentence(theirs, change):
    rewrite_snapshots(theirs, change)
    with pytest.raises(SnapshotError):
        resume(theirs)


@pytest.mark.parametrize("field", ["attempt", "step", "position"])
@pytest.mark.parametrize("value", [-1, 1e400, 2**70, "3", 1.5])
def test_a_label_holds_numbers_that_a_run_reaches(field, value):
    ref = SnapshotRef(
        id="a", attempt=1, step=1, position=1, durable=True, digest="", health=Health()
    )
    with pytest.raises(SnapshotError, match="label is damaged"):
        SnapshotRef.from_json({**ref.to_json(), field: value})


@pytest.mark.parametrize("dtype", ["O", ["<f4"], {"names": ["a"], "formats": ["O"]}, "V9", "x"])
def test_a_type_is_a_number_type(dtype):
    _, tensors = encode([torch.ones(4)])
    with pytest.raises(SnapshotError):
        decode({"n": ["0", dtype]}, tensors)
    with pytest.raises(SnapshotError):
        decode({"c": "0"}, {"0": torch.ones(3, dtype=torch.int64)})


# ---- recipes


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 9000,
        "lag_steps = " + "9" * 5000,
        "rules = 0x" + "f" * 9000,
        "#" * (2 << 20),
        "\ud800",
        "a = nan",
    ],
)
def test_a_recipe_is_read_or_refused(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError):
        load(path)


@pytest.mark.parametrize(
    "table",
    [
        {"window_steps": 10**30},
        {"watches": float("nan")},
        {"watches": [1]},
    ],
)
def test_a_setting_has_its_type(table):
    with pytest.raises(ConfigError):
        standard({"detectors": {"median_ratio": table}})
