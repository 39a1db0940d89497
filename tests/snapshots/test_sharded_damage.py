"""Sharded snapshots that were damaged or forged: none is accepted, and each says why."""

import contextlib
import copy
import os
import pickle
import random
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan

from foreshock.core.errors import SnapshotError
from foreshock.durable import REAL_DISK
from foreshock.snapshots import sharded_writer
from foreshock.snapshots.labels import blake2b
from foreshock.snapshots.sharded_manifest import Chunk, gap_or_overlap
from foreshock.snapshots.sharded_reader import ShardedLoadPlanner
from foreshock.snapshots.sharded_sealed import seal, unseal
from foreshock.snapshots.sharded_state import Described, state_digest
from foreshock.snapshots.sharded_store import ShardedStore
from foreshock.snapshots.sharded_whole import read_whole
from foreshock.snapshots.sharded_writer import ShardedSavePlanner
from tests.snapshots.sharded_by_hand import live_tree, ref_of, write_by_hand

REF = ref_of(2)
WORLD = 3
FILES = [
    "manifest.json",
    *(f"rank-{rank:05d}.{kind}" for rank in range(WORLD) for kind in ("json", "safetensors")),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    write_by_hand(REAL_DISK, folder, REF, live_tree(3), WORLD)
    assert sorted(one.name for one in (folder / REF.id).iterdir()) == sorted(FILES)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "snapshots")
    return tmp_path / "snapshots"


def refused(folder: Path, match: str | None = None) -> str:
    """Nothing of it is accepted, and nothing of the live state is touched."""
    store = ShardedStore(REAL_DISK, folder)
    tree, before = live_tree(5), live_tree(5)
    with pytest.raises(SnapshotError, match=match) as caught:
        store.read_into(REF.id, tree)
    assert store.digest(tree) == store.digest(before)
    with pytest.raises(SnapshotError):
        store.verify(REF.id)
    with pytest.raises(SnapshotError):
        read_whole(REAL_DISK, folder, REF.id)
    text = str(caught.value)
    assert REF.id in text and len(text) < 800
    return text


def test_what_is_whole_is_read_and_nothing_is_unpickled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a pickle")

    for name in ("load", "loads", "Unpickler", "dump", "dumps", "Pickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    store = ShardedStore(REAL_DISK, folder)
    tree = live_tree(5)
    assert store.read_into(REF.id, tree) == {"rank": 0, "state": [0.5, None]}
    assert store.digest(tree) == store.digest(live_tree(3)) == store.refs()[0][0].digest
    whole = read_whole(REAL_DISK, folder, REF.id)
    assert store.digest(whole.tree) == store.digest(live_tree(3))
    assert whole.own == [{"rank": rank, "state": [0.5, None]} for rank in range(WORLD)]


def harmed(path: Path, rng: random.Random) -> str:
    """Flip a bit, cut, add, remove, blank a block, or double one."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    kind = rng.choice(["flip", "flip", "flip", "cut", "add", "remove", "blank", "double"])
    match kind:
        case "flip":
            data[at] ^= 1 << rng.randrange(8)
        case "cut":
            del data[at:]
        case "add":
            data += bytes(rng.randrange(1, 20))
        case "remove":
            path.unlink()
            return kind
        case "blank":
            old = bytes(data)
            data[at : at + 16] = bytes(len(data[at : at + 16]))
            data[at] ^= bytes(data) == old
        case _:
            data[at:at] = data[at : at + 8]
    path.write_bytes(data)
    return kind


def harm(written: Path, tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(written, folder)
        name = FILES[seed % len(FILES)]
        kind = harmed(folder / REF.id / name, rng)
        assert name in refused(folder), (seed, kind)
        if name == "manifest.json" or kind == "remove":
            assert ShardedStore(REAL_DISK, folder).refs()[0] == []
        shutil.rmtree(folder)


def test_forty_random_injuries(written: Path, tmp_path: Path) -> None:
    harm(written, tmp_path, range(42))


@pytest.mark.slow
def test_a_thousand_random_injuries(written: Path, tmp_path: Path) -> None:
    harm(written, tmp_path, range(100, 1150))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_every_single_byte_counts(written: Path, folder: Path, name: str) -> None:
    path = folder / REF.id / name
    data = path.read_bytes()
    store = ShardedStore(REAL_DISK, folder)
    rng = random.Random(0)
    for at in range(len(data)):
        bit = 1 << rng.randrange(8)
        path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        with pytest.raises(SnapshotError, match=name):
            store.verify(REF.id)


def test_files_that_change_places(folder: Path) -> None:
    one, two = (folder / REF.id / f"rank-0000{rank}.json" for rank in (0, 1))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    refused(folder, "is not the one of its manifest")


def test_a_file_of_another_snapshot(folder: Path) -> None:
    other = ref_of(3)
    write_by_hand(REAL_DISK, folder, other, live_tree(4), WORLD)
    for name in ("rank-00001.json", "rank-00001.safetensors"):
        shutil.copy(folder / other.id / name, folder / REF.id / name)
    refused(folder, "is not the one of its manifest")
    shutil.copy(folder / other.id / "manifest.json", folder / REF.id / "manifest.json")
    refused(folder, f"its label is that of '{other.id}'")


@pytest.mark.parametrize("name", ["manifest.json", "rank-00001.json", "rank-00001.safetensors"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_plain_file(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    path = folder / REF.id / name
    path.rename(tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert name in refused(folder)


def test_a_snapshot_that_is_a_link(folder: Path, tmp_path: Path) -> None:
    (folder / REF.id).rename(tmp_path / "elsewhere")
    (folder / REF.id).symlink_to(tmp_path / "elsewhere")
    refused(folder, "is a symbolic link")


@pytest.mark.parametrize(
    "name", ["../snapshots/x", "", ".", "..", "/etc", "a/b", "a\0b", "x" * 300]
)
def test_ids_that_lead_elsewhere(folder: Path, name: str) -> None:
    with pytest.raises(SnapshotError, match="is no id of a snapshot"):
        ShardedStore(REAL_DISK, folder).read_into(name, live_tree(0))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda tree: tree.pop("s"), "holds /s, which this run has not"),
        (lambda tree: tree.update(new=torch.zeros(1)), "does not hold /new, which this run has"),
        (lambda tree: tree.update(s=torch.zeros(2)), r"/s as torch.float32 of shape \(\)"),
        (lambda tree: tree.update(s=torch.tensor(0)), "this run has torch.int64"),
        (lambda tree: tree.update(odd=object()), "state.odd is a object"),
    ],
)
def test_a_state_that_does_not_fit(folder: Path, change: Callable[[Any], Any], match: str) -> None:
    tree = live_tree(5)
    change(tree)
    with pytest.raises(SnapshotError, match=match):
        ShardedStore(REAL_DISK, folder).read_into(REF.id, tree)


def test_another_format_is_named(folder: Path) -> None:
    forge(folder, lambda body: body.update(format="sharded-2"))
    refused(folder, "has format 'sharded-2'")


# Forged: the digests fit


def forge(folder: Path, change: Callable[[Any], Any], name: str = "manifest.json") -> None:
    """Change a file's body and make every digest fit again, as far as one can."""
    path = folder / REF.id / name
    body = unseal(path.read_bytes())
    change(body)
    path.write_bytes(seal(body))
    if name != "manifest.json":
        data = path.read_bytes()

        def fit(body: Any) -> None:
            body["files"][name] = [len(data), blake2b([data])]

        forge(folder, fit)


def digest_again(body: Any) -> None:
    dtypes = {"F32": torch.float32, "I64": torch.int64, "BF16": torch.bfloat16, "U8": torch.uint8}
    described = {
        name: Described(dtypes[code], tuple(shape), digest)
        for name, (code, shape, digest) in body["tensors"].items()
    }
    body["snapshot"]["digest"] = state_digest(body["structure"], described)


def shaped(shape: list[Any], sizes: list[Any]) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        body["tensors"]["/w"][1] = shape
        body["chunks"]["/w"] = [[0, [0] * len(shape), sizes]]
        with contextlib.suppress(ValueError, OverflowError, TypeError):
            digest_again(body)

    return change


def chunked(*chunks: list[Any]) -> Callable[[Any], None]:
    return lambda body: body["chunks"].update({"/w": list(chunks)})


def structured(structure: Any) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        body["structure"] = structure
        with contextlib.suppress(Exception):
            digest_again(body)

    return change


def nested(depth: int) -> Any:
    node: Any = {"v": 1}
    for _ in range(depth):
        node = {"l": [node]}
    return node


HUGE = 1 << 61
FORGED = [
    shaped([HUGE], [HUGE]),
    shaped([1 << 40, 1 << 40], [1 << 40, 1 << 40]),
    shaped([1 << 70], [1 << 70]),
    shaped([-4, 3], [-4, 3]),
    shaped([4.0, 3], [4, 3]),
    shaped([True, 12], [1, 12]),
    shaped([1] * 100, [1] * 100),
    shaped([12], [12]),
    shaped(["4", 3], [4, 3]),
    chunked(),
    chunked([0, [0, 0], [3, 3]]),
    chunked([0, [0, 0], [5, 3]]),
    chunked([0, [1, 0], [3, 3]]),
    chunked([0, [0, 0], [4, 3]], [1, [0, 0], [4, 3]]),
    chunked([0, [0, 0], [4, 3]], [1, [2, 0], [2, 3]]),
    chunked([0, [0, 0], [2, 3]], [1, [2, 0], [1, 3]]),
    chunked([0, [0, 0], [HUGE, 3]]),
    chunked([0, [-1, 0], [5, 3]]),
    chunked([WORLD, [0, 0], [4, 3]]),
    chunked([-1, [0, 0], [4, 3]]),
    chunked([0, [0], [4]]),
    chunked([0, [0, 0], [4, 3], 1]),
    chunked([0, [0, 0], [0, 3]]),
    lambda body: body["chunks"].update({"/e": [[0, [0, 0], [0, 3]]]}),
    lambda body: body["chunks"].pop("/w"),
    lambda body: body["chunks"].update({"/other": []}),
    lambda body: body["tensors"].pop("/w"),
    lambda body: body["tensors"].update({"/w": ["F99", [4, 3], "0" * 32]}),
    lambda body: body["tensors"].update({"/w": ["F32", [4, 3], "0" * 31 + "G"]}),
    lambda body: body["tensors"].update({"/w": {"shape": [4, 3]}}),
    lambda body: body["ties"].update({"/w": "/s"}),
    lambda body: body["ties"].update({"/tied": "/tied"}),
    lambda body: body["ties"].update({"/tied": ["/w"]}),
    lambda body: body.update(ties=[]),
    lambda body: body["files"].pop("rank-00001.json"),
    lambda body: body["files"].update(
        {"../../../etc/passwd": body["files"].pop("rank-00001.json")}
    ),
    lambda body: body["files"].update({"/etc/passwd": body["files"].pop("rank-00001.safetensors")}),
    lambda body: body["files"].update({"rank-00001.json": [HUGE, "0" * 32]}),
    lambda body: body["files"].update({"rank-00001.safetensors": [HUGE, "0" * 32]}),
    lambda body: body["files"].update({"rank-00001.safetensors": [-1, "0" * 32]}),
    lambda body: body.update(world_size=0),
    lambda body: body.update(world_size=1 << 60),
    lambda body: body.update(world_size=-1),
    lambda body: body.update(world_size="3"),
    lambda body: body.update(world_size=True),
    lambda body: body.update(snapshot={}),
    lambda body: body.update(snapshot=None),
    lambda body: body["snapshot"].update(digest="0" * 32),
    lambda body: body["snapshot"].update(step=-1),
    lambda body: body["snapshot"].update(step=10**100),
    lambda body: body["snapshot"].update(id="../x"),
    lambda body: body.update(structure=None),
    lambda body: body.update(more=1),
    lambda body: body.pop("ties"),
    structured({"v": 1}),
    structured({"l": []}),
    structured({"d": []}),
    structured({"d": [[{"v": "w"}, {"t": "/nowhere"}]]}),
    structured({"d": [[{"v": "w"}, {"t": ["/w"]}]]}),
    structured({"d": [[{"l": []}, {"v": 1}]]}),
    structured(nested(150)),
    structured({"python/object": "os.system"}),
]


@pytest.mark.parametrize("change", FORGED, ids=range(len(FORGED)))
def test_forged_manifests(folder: Path, change: Callable[[Any], Any]) -> None:
    forge(folder, change)
    tracemalloc.start()
    try:
        refused(folder)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def entry(place: int, value: Any) -> Callable[[Any], None]:
    def change(body: Any) -> None:
        first = next(iter(body["tensors"]))
        body["tensors"][first][place] = value

    return change


def other_types(body: Any) -> None:
    """Of the same size, so that everything else fits."""
    others = {"F32": "I32", "I64": "F64", "BF16": "F16", "U8": "I8"}
    for one in body["tensors"].values():
        one[0] = others[one[0]]


def other_names(body: Any) -> None:
    body["tensors"] = {f"{name}0": one for name, one in body["tensors"].items()}


FORGED_CONTENTS = [
    other_types,
    other_names,
    entry(0, "F64"),
    entry(0, "X"),
    entry(1, [1 << 50]),
    entry(1, [-1]),
    entry(2, 8),
    entry(2, -8),
    entry(2, 1 << 60),
    entry(3, "0" * 32),
    entry(3, None),
    lambda body: body["tensors"].clear(),
    lambda body: body["tensors"].update({"/new@0": ["F32", [0], 10**9, "0" * 32]}),
    lambda body: body["tensors"].update({"rank_state:9": ["U8", [1 << 50], 10**9, "0" * 32]}),
    lambda body: body.update(header_bytes=0),
    lambda body: body.update(header_bytes=1 << 40),
    lambda body: body.update(header_bytes=-8),
    lambda body: body.update(rank=0),
    lambda body: body.update(rank=99),
    lambda body: body.update(world_size=1),
    lambda body: body.update(snapshot="x"),
    lambda body: body.update(format=1),
    lambda body: body.pop("rank_state"),
    lambda body: body.clear(),
]


@pytest.mark.parametrize("change", FORGED_CONTENTS, ids=range(len(FORGED_CONTENTS)))
def test_forged_tables_of_contents(folder: Path, change: Callable[[Any], Any]) -> None:
    forge(folder, change, "rank-00001.json")
    tracemalloc.start()
    try:
        assert "rank-00001" in refused(folder)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e999}',
        b'{"a":1,"a":1}',
        b'{"a":' + b"9" * 100_000 + b"}",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'"x"',
        b"1",
    ],
)
def test_sealed_files_of_odd_json(folder: Path, text: bytes) -> None:
    sealed = b'{"blake2b":"' + blake2b([text]).encode() + b'","body":' + text + b"}"
    (folder / REF.id / "manifest.json").write_bytes(sealed)
    refused(folder, r"manifest\.json|has format")
    assert len(ShardedStore(REAL_DISK, folder).refs()[1]) == 1


def test_a_tensor_that_no_rank_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer refuses; where it did not, the reader does."""
    whole_plan = ShardedSavePlanner.create_local_plan

    def without(planner: ShardedSavePlanner) -> SavePlan:
        return SavePlan([one for one in whole_plan(planner).items if one.index.fqn != "/w"])

    monkeypatch.setattr(ShardedSavePlanner, "create_local_plan", without)
    with pytest.raises(SnapshotError, match="/w is not covered by the ranks' parts: no chunk"):
        write_by_hand(REAL_DISK, tmp_path, REF, live_tree(3), WORLD)
    monkeypatch.setattr(sharded_writer, "gap_or_overlap", lambda *_: "")
    write_by_hand(REAL_DISK, tmp_path, REF, live_tree(3), WORLD)
    monkeypatch.undo()
    refused(tmp_path, "'/w' has no chunk")


def test_what_was_restored_is_digested(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that the plan forgot, and so kept its old values."""
    whole_plan = ShardedLoadPlanner.create_local_plan

    def without(planner: ShardedLoadPlanner) -> LoadPlan:
        items = whole_plan(planner).items
        return LoadPlan([one for one in items if one.dest_index.fqn != "/b"])

    monkeypatch.setattr(ShardedLoadPlanner, "create_local_plan", without)
    with pytest.raises(SnapshotError, match="1 tensors have another digest, /b among them"):
        ShardedStore(REAL_DISK, folder).read_into(REF.id, live_tree(5))


def test_a_rank_state_that_is_forged(folder: Path) -> None:
    forge(folder, lambda body: body.update(rank_state={"t": "7"}), "rank-00000.json")
    with pytest.raises(SnapshotError, match="structure is damaged"):
        ShardedStore(REAL_DISK, folder).read_into(REF.id, live_tree(5))


def test_a_rank_state_that_is_huge(folder: Path) -> None:
    """4 GiB of holes, announced as they should be: refused before a byte is read."""
    size = 1 << 32
    shard = folder / REF.id / "rank-00001.safetensors"
    held = shard.stat().st_size

    def grow(body: Any) -> None:
        begin = held - body["header_bytes"]
        body["tensors"]["rank_state:0"] = ["U8", [size], begin, "0" * 32]

    def announce(body: Any) -> None:
        body["files"][shard.name][0] = held + size

    with shard.open("r+b") as file:
        file.truncate(held + size)
    forge(folder, grow, "rank-00001.json")
    forge(folder, announce)
    refused(folder, "its tensors are not of the size of its file")


def test_a_manifest_without_end(folder: Path) -> None:
    """A sparse file of 64 GiB: refused by its size, not read."""
    with (folder / REF.id / "manifest.json").open("r+b") as file:
        file.truncate(1 << 36)
    refused(folder, "are allowed")


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value: its container and key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from nodes(inner)


odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from([[], {}, [[]], {"v": 1}, {"t": "/w"}, [0, [0, 0], [4, 3]], "rank-00000.json"]),
)


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_no_forged_manifest_raises_anything_else(written: Path, data: st.DataObject) -> None:
    """Replace or remove any value; what is accepted must be the same state."""
    path = written / REF.id / "manifest.json"
    sealed = path.read_bytes()
    body = copy.deepcopy(unseal(sealed))
    container, key = data.draw(st.sampled_from(list(nodes(body))))
    if data.draw(st.booleans()):
        container[key] = data.draw(odd_values)
    else:
        del container[key]
    if data.draw(st.booleans()):
        with contextlib.suppress(Exception):
            digest_again(body)
    store = ShardedStore(REAL_DISK, written)
    tree = live_tree(5)
    try:
        path.write_bytes(seal(body))
        store.read_into(REF.id, tree)
        for name, tensor in live_tree(3).items():
            if isinstance(tensor, torch.Tensor):
                assert torch.equal(tensor, tree[name])
    except SnapshotError as error:
        assert REF.id in str(error)
    finally:
        path.write_bytes(sealed)


# Chunks that cover a tensor once


def covered_slowly(shape: list[int], chunks: list[Chunk]) -> bool:
    count = torch.zeros(shape)
    for one in chunks:
        if any(o + s > d for o, s, d in zip(one.offsets, one.sizes, shape, strict=True)):
            return False
        count[tuple(slice(o, o + s) for o, s in zip(one.offsets, one.sizes, strict=True))] += 1
    return bool((count == 1).all())


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_cover_is_a_cover(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    box = st.tuples(*(st.integers(0, size - 1) for size in shape)).flatmap(
        lambda start: st.tuples(st.just(start), st.tuples(*(st.integers(1, 4) for _ in start))).map(
            lambda one: Chunk(0, *one)
        )
    )
    chunks = data.draw(st.lists(box, max_size=4))
    if not gap_or_overlap(shape, chunks):
        assert covered_slowly(shape, chunks)


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_every_grid_is_accepted_and_no_part_of_one(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    chunks = [Chunk(0, (), ())]
    for size in shape:
        cuts = sorted({0, *data.draw(st.lists(st.integers(0, size - 1), max_size=3))})
        spans = list(zip(cuts, [*cuts[1:], size], strict=True))
        chunks = [
            Chunk(0, (*one.offsets, start), (*one.sizes, end - start))
            for one in chunks
            for start, end in spans
        ]
    assert covered_slowly(shape, chunks)
    chunks = data.draw(st.permutations(chunks))
    assert gap_or_overlap(shape, chunks) == ""
    assert gap_or_overlap(shape, chunks[1:])
    assert gap_or_overlap(shape, [*chunks, chunks[0]])
