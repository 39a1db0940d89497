"""Files of tensors: what the safetensors library reads and writes, and nothing that was damaged."""

import hashlib
import io
import json

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.durable import RealDisk
from foreshock.snapshots.codec import DAMAGE, tensor_bytes
from foreshock.snapshots.disk import DiskStore
from foreshock.snapshots.tensor_file import chunks, read
from tests.snapshots.test_codec import tensors


def of(data: bytes):
    return read(io.BytesIO(data), len(data), hashlib.blake2b())


def equal(one, two) -> bool:
    return list(one) == list(two) and all(
        one[name].dtype == two[name].dtype
        and one[name].shape == two[name].shape
        and tensor_bytes(one[name]) == tensor_bytes(two[name])
        for name in one
    )


held = st.dictionaries(
    st.text(max_size=4).filter(lambda name: name != "__metadata__"),
    tensors().filter(lambda one: not one.is_complex()),
    max_size=5,
)


@given(held)
@settings(deadline=None, max_examples=150)
def test_the_library_reads_it_and_it_reads_the_librarys(state):
    data = b"".join(chunks(state))
    assert equal(dict(sorted(safetensors.torch.load(data).items())), dict(sorted(state.items())))
    assert equal(dict(sorted(of(data).items())), dict(sorted(state.items())))
    theirs = of(safetensors.torch.save(state, metadata={"a": "b"}))
    assert equal(dict(sorted(theirs.items())), dict(sorted(state.items())))


def test_every_byte_is_hashed_once_and_in_order():
    data = b"".join(chunks({"a": torch.randn(5), "b": torch.zeros(0), "c": torch.ones(3).half()}))
    sink = hashlib.blake2b()
    read(io.BytesIO(data), len(data), sink)
    assert sink.digest() == hashlib.blake2b(data).digest()


def test_the_pieces_are_the_tensors_own_memory():
    tensor = torch.zeros(4)
    pieces = list(chunks({"a": tensor}))
    tensor.fill_(1)
    assert torch.frombuffer(pieces[1], dtype=torch.float32).tolist() == [1] * 4


def test_a_type_that_no_file_has_is_refused_before_anything_is_written():
    with pytest.raises(SnapshotError, match="float8_e8m0fnu"):
        chunks({"a": torch.zeros(2, dtype=torch.float8_e8m0fnu)})


def forged(header: object, body: bytes = b"\0" * 8) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


FORGED = [
    b"", b"\0" * 7, b"\xff" * 8, b"\xff" * 100, forged([]), forged({"a": 1}), forged(None),
    forged({"a": entry(shape=[99999999999])}), forged({"a": entry(shape=[-2], offsets=[8, 0])}),
    forged({"a": entry(dtype="C64", offsets=[0, 8])}), forged({"a": entry(dtype=["F32"])}),
    forged({"a": entry(offsets=[0, 4], shape=[1])}), forged({"a": entry(offsets=[4, 12])}),
    forged({"a": entry(), "b": entry()}), forged({"a": entry(offsets=[0])}), forged({}),
    forged({"a": entry(shape=[1.0, 2])}), forged({"a": entry(shape=[True, 2])}),
    forged({"a": entry(shape=[2**62, 2**62, 0], offsets=[0, 0])}), forged({"a": entry(shape="2")}),
    (1 << 62).to_bytes(8, "little"), forged({"a": entry()}, b"\0" * 7),
    forged({"a": entry(offsets=[0, 10**400])}), b"\x05\0\0\0\0\0\0\0[[[[[",
]  # fmt: skip


@pytest.mark.parametrize("data", FORGED, ids=range(len(FORGED)))
def test_what_is_no_such_file_is_refused(data):
    with pytest.raises(DAMAGE):
        of(data)


# ---- fuzz -------------------------------------------------------------------------------


def snapshot(folder):
    store = DiskStore(RealDisk(), folder)
    torch.manual_seed(0)
    tree = {
        "training": {"model": {"w": torch.randn(40, 9), "h": torch.randn(7).half()}},
        "watching": {"steps": np.arange(12), "note": [1, 2.5, "x", None]},
        "labels": [],
    }
    ref = SnapshotRef(
        id="00000007-a00001",
        attempt=1,
        step=7,
        position=0,
        durable=True,
        digest="",
        health=Health(),
    )
    store.write(ref, tree)
    return folder / ref.id


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut, with a flipped bit, a block of zeros, a block twice, or bytes at the end."""
    place = int(rng.integers(len(data)))
    size = int(rng.integers(1, 64))
    match int(rng.integers(6)):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + bytes(size) + data[place + size :]
        case 2:
            return data[:place] + data[place : place + size] * 2 + data[place + size :]
        case 3:
            return data + rng.bytes(size)
        case _:
            changed = bytearray(data)
            changed[place] ^= 1 << int(rng.integers(8))
            return bytes(changed)


def check_damage(tmp_path, trials: int) -> None:
    folder = snapshot(tmp_path / "snapshots")
    sound = {path: path.read_bytes() for path in folder.iterdir()}
    rng = np.random.default_rng(5)
    tried = 0
    while tried < trials:
        path = sorted(sound)[int(rng.integers(2))]
        data = damaged(sound[path], rng)
        if data == sound[path]:
            continue
        tried += 1
        path.write_bytes(data)
        with pytest.raises(SnapshotError, match=folder.name) as caught:
            DiskStore(RealDisk(), folder.parent).read(folder.name)
        assert len(str(caught.value)) < 500
        path.write_bytes(sound[path])
    DiskStore(RealDisk(), folder.parent).read(folder.name)


def test_no_damage_is_accepted(tmp_path):
    check_damage(tmp_path, 60)


@pytest.mark.slow
def test_no_damage_in_a_thousand_is_accepted(tmp_path):
    check_damage(tmp_path, 1000)
