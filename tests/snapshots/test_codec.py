"""State trees to JSON and tensors and back, and their digest."""

import contextlib
import json
import math
import tracemalloc
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.durable import RealDisk
from foreshock.snapshots.codec import decode, digest, encode, tensor_bytes
from foreshock.snapshots.disk import DiskStore
from foreshock.snapshots.labels import blake2b, canonical

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]
SCALARS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1", "c8", "c16"]


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)  # any bits: NaNs too


arrays = st.sampled_from(SCALARS).flatmap(
    lambda code: hnp.arrays(np.dtype(code), hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
)
scalars = st.sampled_from(SCALARS).flatmap(
    lambda code: st.binary(min_size=np.dtype(code).itemsize, max_size=np.dtype(code).itemsize).map(
        lambda raw: np.frombuffer(
            bytes(b & 1 for b in raw) if code == "b1" else raw, np.dtype(code)
        )[0]
    )
)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**130), 2**130),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
)
keys = st.one_of(st.text(max_size=4), st.integers(), st.floats(allow_nan=False), st.none())
trees = st.recursive(
    st.one_of(plain, tensors(), arrays, scalars),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=12,
)


def same(one, two):
    """Equal in type and in every bit."""
    assert type(one) is type(two)
    if isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype
        assert one.shape == two.shape
        assert tensor_bytes(one) == tensor_bytes(two)
    elif isinstance(one, np.ndarray | np.generic):
        assert one.dtype == two.dtype
        assert np.shape(one) == np.shape(two)
        assert one.tobytes() == two.tobytes()
    elif isinstance(one, dict):
        assert list(one) == list(two)
        assert [type(key) for key in one] == [type(key) for key in two]
        for key in one:
            same(one[key], two[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(two)
        for left, right in zip(one, two, strict=True):
            same(left, right)
    elif isinstance(one, float):
        assert one == two or (math.isnan(one) and math.isnan(two))
        assert math.copysign(1, one) == math.copysign(1, two) or math.isnan(one)
    else:
        assert one == two


def through_json(tree):
    structure, held = encode(tree)
    text = json.dumps(structure, allow_nan=False)
    return decode(json.loads(text), held)


@given(trees)
@settings(deadline=None, max_examples=150)
def test_every_tree_comes_back_bit_for_bit(tree):
    back = through_json(tree)
    same(tree, back)
    assert digest(tree) == digest(back)


def store_at(tmp_path):
    (tmp_path / "snapshots").mkdir(exist_ok=True)
    return DiskStore(RealDisk(), tmp_path / "snapshots")


def ref_of(name="00000001-a00001"):
    return SnapshotRef(
        id=name, attempt=1, step=1, position=0, durable=True, digest="", health=Health()
    )


@given(st.lists(trees, max_size=4))
@settings(deadline=None, max_examples=40)
def test_every_tree_comes_back_from_disk(tmp_path_factory, tree):
    store = store_at(tmp_path_factory.mktemp("store"))
    store.write(ref_of(), tree)
    same(tree, store.read(ref_of().id))


def test_tied_tensors_are_stored_once_and_views_are_apart():
    weight = torch.arange(12.0).reshape(3, 4)
    tree = {"a": weight, "b": weight, "row": weight[0], "turned": weight.T}
    _, held = encode(tree)
    assert len(held) == 3
    back = through_json(tree)
    same(tree, back)


@given(trees, st.data())
@settings(deadline=None, max_examples=100)
def test_the_digest_sees_every_bit_of_a_tensor(tree, data):
    tensor = data.draw(tensors().filter(lambda t: t.numel() and t.dtype is not torch.bool))
    before = digest([tree, tensor])
    raw = bytearray(bytes(tensor_bytes(tensor)))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    changed = torch.frombuffer(raw, dtype=tensor.dtype).reshape(tensor.shape)
    assert digest([tree, changed]) != before


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1, True),
        (1, 1.0),
        ([1], (1,)),
        ("1", 1),
        (b"1", "1"),
        (0.0, -0.0),
        (None, "None"),
        ({"a": 1}, {"b": 1}),
        ({1: 1}, {"1": 1}),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(0, 3), torch.zeros(3, 0)),
        (torch.zeros(()), torch.zeros(1)),
        (torch.zeros(1), np.zeros(1, np.float32)),
        (np.zeros(1, np.uint32), np.zeros(1, np.int32)),
        (np.float32(1), np.float64(1)),
        ([torch.zeros(1), torch.ones(1)], [torch.ones(1), torch.zeros(1)]),
        (torch.tensor(0.0), torch.tensor(-0.0)),
    ],
)
def test_what_is_not_the_same_has_another_digest(one, two):
    assert digest(one) != digest(two)


class Odd:
    pass


def endless():
    loop = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("tree", "match"),
    [
        ({"a": [Odd()]}, r"state.a\[0\] is a Odd"),
        ({"a": {1, 2}}, "state.a is a set"),
        ({(1, 2): 3}, r"state has the key \(1, 2\)"),
        ({"s": torch.eye(2).to_sparse()}, "state.s is a torch.sparse_coo"),
        (np.array(["x"]), "state is an array of <U1"),
        (np.array([Odd()]), "state is an array of object"),
        (np.zeros(2, ">f4"), "state is an array of >f4"),
        (np.zeros(2, "f4,i4"), "state is an array"),
        (np.datetime64("2020-01-01"), "state is a datetime64"),
        (1j, "state is a complex"),
        (lambda: None, "state is a function"),
        (endless(), "nested too deeply"),
    ],
)
def test_what_cannot_be_held_is_refused_with_its_place(tree, match):
    with pytest.raises(SnapshotError, match=match) as caught:
        encode(tree)
    assert "\n" not in str(caught.value)


def test_an_ordered_dict_and_a_bool_array_are_held():
    tree = OrderedDict(a=np.array([True, False]), b=torch.nn.Parameter(torch.ones(2)))
    back = through_json(tree)
    assert back["a"].dtype == bool
    assert back["b"].tolist() == [1, 1]


HOSTILE = [
    None,
    1,
    [],
    {},
    {"v": 1, "t": 2},
    {"t": "9"},
    {"t": []},
    {"t": {"a": 1}},
    {"n": ["0", "O"]},
    {"n": ["0", "V100000000000"]},
    {"n": ["0", "<U9999999999"]},
    {"n": ["0", "f3"]},
    {"n": ["0", "c16"]},
    {"n": []},
    {"n": None},
    {"s": ["V100000000000", {"v": 1}]},
    {"s": ["O", "00"]},
    {"s": ["f4", "00"]},
    {"s": ["f4", "0000000000000000"]},
    {"s": ["f4", "xy"]},
    {"s": ["<M8[ns]", "0000000000000000"]},
    {"s": "f4"},
    {"f": "nan"},
    {"f": [1]},
    {"f": 10**400},
    {"b": "0"},
    {"b": 5},
    {"l": 5},
    {"l": "ab"},
    {"u": {"a": 1}},
    {"d": [1]},
    {"d": [[{"v": 1}]]},
    {"d": [[{"l": []}, {"v": 1}]]},
    {"d": {"a": 1}},
    {"x" * 10_000_000: 1},
    {"python/object": "os.system"},
]


@pytest.mark.parametrize("structure", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_structures_give_one_error(structure):
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotError) as caught:
            decode({"l": [structure]}, {"0": torch.zeros(3)})
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 400


def test_a_structure_nested_too_deeply():
    structure = {"v": 1}
    for _ in range(100_000):
        structure = {"l": [structure]}
    with pytest.raises(SnapshotError):
        decode(structure, {})


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from("vtnsfblud"), st.text(max_size=3)), inner, max_size=2
        ),
    ),
)


@given(json_values)
@settings(deadline=None, max_examples=300)
def test_no_structure_raises_anything_else(structure):
    with contextlib.suppress(SnapshotError):
        decode(structure, {"0": torch.zeros(2)})


@given(json_values, st.sampled_from(["snapshot", "structure", "files", "format", None]))
@settings(deadline=None, max_examples=60)
def test_no_manifest_raises_anything_else(tmp_path_factory, value, field):
    store = store_at(tmp_path_factory.mktemp("store"))
    store.write(ref_of(), {"a": torch.ones(2)})
    path = store._folder / ref_of().id / "manifest.json"
    body = json.loads(path.read_text())["body"]
    body = value if field is None else body | {field: value}
    try:
        text = canonical({"blake2b": blake2b([canonical(body).encode()]), "body": body})
    except ValueError:
        return
    path.write_text(text)
    found, objections = store.refs()
    assert len(found) + len(objections) == 1
    try:
        store.read(ref_of().id)
    except SnapshotError as error:
        assert ref_of().id in str(error)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=40)
def test_no_bytes_raise_anything_else(tmp_path_factory, data):
    store = store_at(tmp_path_factory.mktemp("store"))
    store.write(ref_of(), {"a": torch.ones(2)})
    folder = store._folder / ref_of().id
    (folder / "manifest.json").write_bytes(data)
    assert store.refs()[0] == []
    with pytest.raises(SnapshotError, match=ref_of().id):
        store.read(ref_of().id)


def test_a_forged_tensor_file_with_a_fitting_digest(tmp_path):
    """Its digest fits, so only the reader of tensors can object."""
    store = store_at(tmp_path)
    store.write(ref_of(), {"a": torch.ones(2)})
    folder = store._folder / ref_of().id
    header = b'{"0":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,8]}}'
    for data in (b"", b"\xff" * 8, len(header).to_bytes(8, "little") + header + b"\0" * 8):
        (folder / "tensors.safetensors").write_bytes(data)
        body = json.loads((folder / "manifest.json").read_text())["body"]
        body["files"]["tensors.safetensors"] = {"size_bytes": len(data), "blake2b": blake2b([data])}
        text = canonical({"blake2b": blake2b([canonical(body).encode()]), "body": body})
        (folder / "manifest.json").write_text(text)
        with pytest.raises(SnapshotError, match=r"tensors\.safetensors"):
            store.read(ref_of().id)
