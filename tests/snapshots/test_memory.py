"""The memory ring: memory taken once, copies in and copies out, in place."""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.snapshots.checksum import checksum
from foreshock.snapshots.codec import digest, tensor_bytes
from foreshock.snapshots.memory import MemoryRing
from foreshock.snapshots.parts import ModulePart, OptimizerPart, clone_tree
from foreshock.snapshots.slot import Slot
from tests.snapshots.test_codec import same, trees


def ref(step: int) -> SnapshotRef:
    return SnapshotRef(
        id=f"s{step}", attempt=1, step=step, position=0, durable=False, digest="", health=Health()
    )


def state(seed: int, size: int = 300):
    drawn = torch.Generator().manual_seed(seed)
    weight = torch.randn(size, generator=drawn)
    return {"w": weight, "tied": weight, "half": weight.half(), "n": [seed, float("nan"), "x"]}


def pointers(tree):
    return {tree[name].data_ptr() for name in ("w", "tied", "half")}


# ---- slots ------------------------------------------------------------------------------


@given(trees, trees)
@settings(deadline=None, max_examples=80)
def test_a_slot_gives_back_what_it_was_filled_with_last(first, second):
    slot = Slot()
    for tree in (first, second, first):
        expected = digest(tree)
        slot.fill(tree)
        same(tree, slot.tree())
        assert digest(slot.tree()) == expected


def test_its_memory_is_taken_once_and_is_its_own():
    slot, live = Slot(), state(1)
    slot.fill(live)
    held = slot.tree()
    before = pointers(held)
    assert len(before) == 2  # tied weights are held once
    assert not before & pointers(live)
    live["w"].zero_()
    assert held["w"].any()
    slot.fill(state(2))
    assert pointers(slot.tree()) == before
    same(slot.tree(), state(2))


def test_what_does_not_fit_any_more_is_taken_anew_and_the_rest_stays():
    slot = Slot()
    slot.fill([torch.zeros(3), torch.zeros(4), torch.zeros(5)])
    before = [one.data_ptr() for one in slot.tree()]
    slot.fill([torch.ones(3), torch.ones(2, 2), torch.ones(5, dtype=torch.float64)])
    after = slot.tree()
    assert [one.data_ptr() == old for one, old in zip(after, before, strict=True)] == [
        True, False, False,
    ]  # fmt: skip
    slot.fill([torch.ones(3)])
    assert slot.size_bytes == 12
    assert slot.tree()[0].data_ptr() == before[0]


def test_strides_and_views_do_not_matter():
    slot, base = Slot(), torch.arange(24.0).reshape(4, 6)
    tree = [base.T, base[:, ::2], base[1:3], base[0].expand(3, 6)]
    slot.fill(tree)
    for mine, theirs in zip(tree, slot.tree(), strict=True):
        assert torch.equal(mine, theirs)
        assert theirs.is_contiguous()


# ---- the ring ---------------------------------------------------------------------------


def test_the_oldest_makes_room_and_gives_its_memory():
    ring = MemoryRing(2)
    used: set[int] = set()
    for step in range(6):
        held = ring.put(ref(step), state(step), {"step": np.array([step])}, [])
        used |= pointers(held.training())
        assert held.ref.digest == checksum(state(step))
    assert [one.step for one in ring.refs] == [4, 5]
    assert len(used) == 2 * 2  # two slots of two tensors, however many snapshots
    same(ring.get("s4").training(), state(4))
    assert ring.get("s3") is None


def test_what_is_being_written_is_not_overwritten():
    ring = MemoryRing(2)
    first = ring.put(ref(0), state(0), None, [])
    first.locked = True
    used = pointers(first.training())
    for step in range(1, 6):
        used |= pointers(ring.put(ref(step), state(step), None, []).training())
        same(first.training(), state(0))
        assert ring.get("s0") is first
    assert [one.step for one in ring.refs] == [4, 5]
    first.locked = False
    ring.settle()
    assert ring.get("s0") is None
    for step in range(6, 12):
        used |= pointers(ring.put(ref(step), state(step), None, []).training())
    assert len(used) == 2 * 3  # one slot more than the ring has


def test_without_capacity_one_is_held_until_it_is_written():
    ring = MemoryRing(0)
    held = ring.put(ref(0), state(0), None, [])
    assert ring.refs == []
    assert ring.get("s0") is held
    ring.settle()
    assert ring.get("s0") is None


def test_going_back_lets_go_of_what_was_undone():
    ring = MemoryRing(4)
    for step in range(4):
        ring.put(ref(step), state(step), None, [])
    ring.drop_after(1)
    assert [one.step for one in ring.refs] == [0, 1]
    ring.put(ref(1), state(9), None, [])  # the same id again
    assert [one.step for one in ring.refs] == [0, 1]
    same(ring.get("s1").training(), state(9))


def test_a_state_that_cannot_be_held_leaves_the_ring_usable():
    ring = MemoryRing(2)
    ring.put(ref(0), state(0), None, [])
    with pytest.raises(SnapshotError, match=r"state.x is a object"):
        ring.put(ref(1), {"a": torch.ones(2), "x": object()}, None, [])
    ring.put(ref(2), state(2), None, [])
    assert [one.step for one in ring.refs] == [0, 2]
    same(ring.get("s2").training(), state(2))


# ---- copies back ------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("hidden", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.second(self.norm(self.first(x))) * self.hidden.sum()


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "capturable": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "rprop": torch.optim.Rprop,
    "half moments": lambda p: torch.optim.AdamW(p, lr=0.01),
    "hooked": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def train(model, optimizer, steps):
    for step in range(steps):
        drawn = torch.Generator().manual_seed(step)
        model(torch.randn(8, 6, generator=drawn)).square().mean().backward()
        with contextlib.suppress(KeyError):
            optimizer.param_groups[0]["lr"] *= 0.97
        optimizer.step()
        optimizer.zero_grad()
        model.hidden.mul_(1.01)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_restore_is_exact_in_place_and_what_follows_is_the_same(kind):
    torch.manual_seed(0)
    model = Net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, optimizer, 3)
    if kind == "half moments":
        for one in optimizer.state.values():
            one["exp_avg"] = one["exp_avg"].bfloat16()
    called = []
    if kind == "hooked":
        model.register_load_state_dict_post_hook(lambda *_: called.append("model"))
        optimizer.register_load_state_dict_post_hook(lambda _: called.append("optimizer"))
    parts = {"m": ModulePart(model), "o": OptimizerPart(optimizer)}

    def capture():
        return {name: part.capture() for name, part in parts.items()}

    slot = Slot()
    slot.fill(capture())
    expected = digest(capture())
    places = {one.data_ptr() for one in model.state_dict().values()}
    if kind != "half moments":
        train(model, optimizer, 4)
        after = digest(capture())
        assert after != expected
    for _ in range(2):
        for name, part in parts.items():
            part.restore(slot.tree()[name])
        assert digest(capture()) == expected
        if kind != "hooked":
            assert {one.data_ptr() for one in model.state_dict().values()} == places
            assert OptimizerPart(optimizer)._copied(slot.tree()["o"])
        if kind != "half moments":
            train(model, optimizer, 4)  # writes into the live state, and not into the slot
            assert digest(capture()) == after
    assert called == (["model", "optimizer"] * 2 if kind == "hooked" else [])


def test_an_optimizer_without_a_state_yet_gets_it_and_loses_it_again():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    part = OptimizerPart(optimizer)
    fresh, empty = Slot(), digest(part.capture())
    fresh.fill(part.capture())
    train(model, optimizer, 2)
    full, there = Slot(), digest(part.capture())
    full.fill(part.capture())
    part.restore(fresh.tree())
    assert digest(part.capture()) == empty
    part.restore(full.tree())
    assert digest(part.capture()) == there
    optimizer.state.clear()
    part.restore(clone_tree(full.tree()))
    assert digest(part.capture()) == there


class Doubled(nn.Linear):
    """Its state dict has another weight than its own."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self._register_state_dict_hook(
            lambda _m, state, prefix, _meta: state.update(
                {f"{prefix}weight": state[f"{prefix}weight"] * 2}
            )
        )

    def load_state_dict(self, state_dict, *args, **kwargs):
        halved = {**state_dict, "weight": state_dict["weight"] / 2}
        return super().load_state_dict(halved, *args, **kwargs)


def test_a_module_with_a_way_of_its_own_is_asked():
    model = Doubled()
    part = ModulePart(model)
    slot, before = Slot(), model.weight.detach().clone()
    slot.fill(part.capture())
    with torch.no_grad():
        model.weight.zero_()
    part.restore(slot.tree())
    assert torch.equal(model.weight, before)


# ---- the checksum -----------------------------------------------------------------------


def slow_sum(data: bytes) -> int:
    """Word by word, in Python's own integers."""
    mask, total = (1 << 64) - 1, 0
    for row in range(0, len(data), 2048):
        words = data[row : row + 2048].ljust(2048, b"\0")
        z = (row // 2048 + 1) * 0x9E3779B97F4A7C15 & mask
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        weight = (z ^ (z >> 31)) | 1
        total += weight * sum(int.from_bytes(words[i : i + 8], "little") for i in range(0, 2048, 8))
    return total & mask


@pytest.mark.parametrize("size", [1, 7, 8, 9, 511, 512, 513, 5000, 70_001])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.float64])
def test_the_sum_is_that_of_a_slow_reference(size, dtype):
    from foreshock.snapshots.checksum import _device_sum, _sums  # noqa: PLC0415

    tensor = torch.randint(0, 100, (size + 1,)).to(dtype)[1:]  # nothing is aligned
    expected = slow_sum(bytes(tensor_bytes(tensor)))
    assert _sums([tensor]) == [expected]
    flat = tensor.contiguous().view(torch.uint8)
    assert int(_device_sum(flat)) & (2**64 - 1) == expected


@given(trees, st.data())
@settings(deadline=None, max_examples=100)
def test_no_flipped_bit_goes_unnoticed(tree, data):
    size = data.draw(st.integers(1, 6000))
    tensor = torch.randint(0, 256, (size,), dtype=torch.uint8)
    before = checksum([tree, tensor])
    tensor[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert checksum([tree, tensor]) != before


def test_what_changes_places_is_noticed():
    rows = torch.randn(8, 512)
    one, two = torch.randn(3, 5), torch.randn(3, 5)
    assert checksum([rows]) != checksum([rows.flip(0)])
    assert checksum([one, two]) != checksum([two, one])
    assert checksum([one]) != checksum([one.reshape(5, 3)])
    assert checksum([one]) != checksum([one.view(torch.int32)])
    assert checksum({"a": 1}) != checksum({"a": True})
    assert checksum([rows.T]) == checksum([rows.T.contiguous()])
