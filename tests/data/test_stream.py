import json
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.errors import ConfigError, StreamError
from foreshock.core.rule import Rule
from foreshock.data.ledger import LedgerEntry
from foreshock.data.order import Order
from foreshock.data.stream import Stage, Stream


@dataclass(frozen=True, kw_only=True)
class NoMultiples(Rule):
    """Rejects [n] where n is a multiple of `of`."""

    name: ClassVar[str] = "no_multiples"
    of: int = 3

    def can_judge(self, tokens, text):
        return tokens is not None

    def judge(self, tokens, text):
        if tokens is not None and tokens[0] % self.of == 0:
            return f"{tokens[0]} is a multiple of {self.of}"
        return None


def numbers(size, start=0):
    return [[n] for n in range(start, start + size)]


A, B = numbers(31), numbers(17, start=1000)
MIXED = [
    Stage(name="warm", sources={"a": A}),
    Stage(
        name="main", sources={"a": A, "b": B}, weights={"a": 1, "b": 2}, num_samples=40, repeats=2
    ),
]


def stream_of(stages=MIXED, batch_size=4, **more):
    return Stream(stages, batch_size=batch_size, seed=5, collate=list, **more)


def drain(stream):
    batches = []
    while True:
        try:
            batches.append(stream.next_batch())
        except StopIteration:
            return batches


def all_ids(stream):
    return [sample_id for batch in drain(stream) for sample_id in batch.ids]


def quarantine(stream, *ids, entry_id="q"):
    stream.ledger.add(LedgerEntry(entry_id=entry_id, reason="test", ids=ids))


@given(
    batch_size=st.integers(1, 50),
    held=st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 16)), min_size=1),
    with_rule=st.booleans(),
)
@settings(deadline=None)
def test_the_order_does_not_depend_on_the_batch_size(batch_size, held, with_rule):
    def run(size):
        stream = stream_of(batch_size=size)
        quarantine(stream, *held)
        stream.rules = [NoMultiples(of=5)] if with_rule else ()
        return all_ids(stream), stream.ledger.to_json()

    assert run(batch_size) == run(1)


@given(world_size=st.integers(1, 6), per_rank=st.integers(1, 5), with_rule=st.booleans())
@settings(deadline=None)
def test_ranks_share_one_order(world_size, per_rank, with_rule):
    streams = [
        stream_of(batch_size=world_size * per_rank, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    for stream in streams:
        stream.rules = [NoMultiples()] if with_rule else ()
    alone = stream_of(batch_size=1)
    alone.rules = streams[0].rules
    expected = [batch.data[0] for batch in drain(alone)]

    per_stream = [drain(stream) for stream in streams]
    assert len({tuple(b.positions for b in batches) for batches in per_stream}) == 1
    trained = []
    for parts in zip(*per_stream, strict=True):
        assert len({len(part.data) for part in parts}) == 1
        trained += [sample for part in parts for sample in part.data]
    leftover = streams[0].leftover_samples
    assert leftover == len(expected) % world_size
    assert trained == expected[: len(expected) - leftover]


def test_skips_quarantined_samples_in_every_repeat_and_stage():
    stream = stream_of()
    whole = all_ids(stream_of())
    quarantine(stream, ("a", 3), ("b", 0))
    held = {("a", 3), ("b", 0)}
    assert all_ids(stream) == [i for i in whole if (i.source, i.index) not in held]
    assert sum((i.source, i.index) in held for i in whole) > 4


def test_a_window_is_skipped_after_a_rollback_to_before_it():
    stream = stream_of()
    before = stream.state_dict()
    bad = stream.next_batch()
    window = (bad.positions[0], bad.positions[-1] + 1)
    stream.ledger.add(LedgerEntry(entry_id="w", reason="spike", window=window, incident=1))
    stream.load_state_dict(before)
    assert stream.next_batch().positions == (4, 5, 6, 7)
    assert not set(all_ids(stream)) & set(bad.ids)


@given(num_batches=st.integers(0, 30), batch_size=st.integers(1, 9))
@settings(deadline=None)
def test_resumes_exactly(num_batches, batch_size):
    stream = stream_of(batch_size=batch_size)
    for _ in range(min(num_batches, 111 // batch_size)):
        stream.next_batch()
    resumed = stream_of(batch_size=batch_size)
    resumed.load_state_dict(stream.state_dict())
    rest = drain(stream)
    assert drain(resumed) == rest
    assert resumed.position == stream.position


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"position": -1},
        {"position": 1.0},
        {"position": True},
        {"position": "4"},
        {"position": 0, "epoch": 1},
        {"position": 112},
    ],
)
def test_refuses_nonsense_and_stays_where_it_was(state):
    stream = stream_of()
    stream.next_batch()
    with pytest.raises(StreamError, match="position"):
        stream.load_state_dict(state)
    assert stream.position == 4


def test_every_rejection_is_in_the_ledger_and_reported_once():
    told = []
    stream = stream_of([Stage(name="s", sources={"a": numbers(12)}, repeats=2)], batch_size=3)
    stream.rules = [NoMultiples()]
    stream.on_reject = lambda *args: told.append(args)
    trained = [n for batch in drain(stream) for (n,) in batch.data]
    assert sorted(trained) == sorted(2 * [1, 2, 4, 5, 7, 8, 10, 11])
    assert {(entry.ids, entry.reason) for entry, _ in told} == {
        ((("a", n),), f"{n} is a multiple of 3") for n in (0, 3, 6, 9)
    }
    located = [stream.order.locate(position) for _, position in told]
    assert [entry.ids for entry, _ in told] == [((one.source, one.index),) for one in located]
    assert len(told) == 4  # the second repeat skips them silently: the ledger holds them
    assert stream.ledger.num_by_reason() == {"no_multiples": 4}


def test_a_rejection_survives_a_rollback_without_a_second_report():
    told = []
    stream = stream_of([Stage(name="s", sources={"a": numbers(12)})], batch_size=8)
    stream.rules = [NoMultiples()]
    stream.on_reject = lambda *args: told.append(args)
    first = stream.next_batch()
    stream.load_state_dict({"position": 0})
    assert stream.next_batch() == first
    assert len(told) == stream.ledger.num_samples == 4


def test_a_released_rejection_stands_released():
    stream = stream_of([Stage(name="s", sources={"a": numbers(4)})], batch_size=1)
    stream.rules = [NoMultiples()]
    assert len(drain(stream)) == 2
    for entry in stream.ledger.entries:
        stream.ledger.release(entry.entry_id)
    stream.load_state_dict({"position": 0})
    assert len(drain(stream)) == 4


def test_counts_what_a_rule_could_not_judge():
    stream = stream_of({"pictures": [0.5, 0.25, 0.75]}, batch_size=3)
    stream.rules = [NoMultiples()]
    assert len(stream.next_batch().data) == 3
    assert stream.num_unjudged == {"no_multiples": 3}


def test_without_rules_a_rank_reads_only_its_own_share():
    class Counting(list):
        read = 0

        def __getitem__(self, index):
            self.read += 1
            return super().__getitem__(index)

    dataset = Counting(numbers(16))
    stream = stream_of(dataset, batch_size=8, rank=1, world_size=4)
    stream.next_batch()
    assert dataset.read == 2
    stream.rules = [NoMultiples(of=99)]
    stream.next_batch()
    assert dataset.read in (2 + 8, 2 + 9)  # 0 is a multiple of 99 and may be among these


def test_the_last_batch_is_shorter():
    assert [len(b.data) for b in drain(stream_of(numbers(10), batch_size=4))] == [4, 4, 2]


def test_an_endless_stream_goes_on_unless_everything_is_quarantined():
    stage = Stage(name="s", sources={"a": numbers(5)}, repeats=None)
    stream = stream_of([stage], batch_size=4)
    quarantine(stream, *[("a", i) for i in range(4)])
    assert [i.index for i in stream.next_batch().ids] == [4, 4, 4, 4]
    quarantine(stream, ("a", 4), entry_id="r")
    position = stream.position
    with pytest.raises(StreamError, match="all 5 samples of the endless stage 's'"):
        stream.next_batch()
    assert stream.position == position


def test_a_failing_dataset_is_named_and_nothing_moves():
    class Broken:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == 2:
                raise OSError("disk on fire")
            return [index]

    stream = stream_of({"web": Broken()})
    with pytest.raises(StreamError, match=r"'web', index 2: .*OSError: disk on fire") as caught:
        stream.next_batch()
    assert isinstance(caught.value.__cause__, OSError)
    assert stream.position == 0
    quarantine(stream, ("web", 2))
    assert len(stream.next_batch().data) == 3


def test_describes_itself_independently_of_the_batch():
    described = stream_of().describe()
    assert described == stream_of(batch_size=8, rank=1, world_size=2).describe()
    assert Order.from_description(described).locate(50) == stream_of().order.locate(50)
    assert described["total"] == 111


def test_a_ledger_from_another_process_gives_the_same_stream():
    stream = stream_of()
    stream.ledger.add(LedgerEntry(entry_id="w", reason="spike", window=(10, 30)))
    other = stream_of()
    for entry in json.loads(json.dumps(stream.ledger.to_json()))["entries"]:
        other.apply({"kind": "quarantined", "entry": entry})
    assert all_ids(other) == all_ids(stream)


def test_the_default_collate_is_pytorchs():
    dataset = [(torch.tensor([n, n + 1]), torch.tensor(n)) for n in range(4)]
    x, y = Stream(dataset, batch_size=4, seed=0).next_batch().data
    assert x.shape == (4, 2)
    assert sorted(y.tolist()) == [0, 1, 2, 3]


def test_importing_the_package_does_not_import_torch():
    modules = "stream, order, ledger, statistics"
    code = f"import sys; from foreshock.data import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("sample", "tokens"),
    [
        (torch.tensor([4, 5]), [4, 5]),
        (np.array([4, 5], dtype=np.uint16), [4, 5]),
        ([4, 5], [4, 5]),
        ((torch.tensor([4, 5]), torch.tensor([5, 6])), [4, 5]),
        ({"input_ids": torch.tensor([4, 5, 0]), "attention_mask": torch.tensor([1, 1, 0])}, [4, 5]),
        ({"input_ids": [4, 5, 0], "attention_mask": np.array([True, True, False])}, [4, 5]),
        ({"input_ids": [4, 5], "attention_mask": [1]}, [4, 5]),
        ({"label": 3}, None),
        ("hé", [104, 233]),
        (b"h\xff", [104, 255]),
        (torch.tensor([0.5]), None),
        (torch.tensor([0.5], dtype=torch.bfloat16), None),
        (torch.zeros(3, 4, dtype=torch.uint8), None),
        (torch.tensor(7), None),
        (None, None),
    ],
)
def test_tokens_of_every_common_sample(sample, tokens):
    found = stream_of([sample]).tokens(0)
    assert (None if found is None else found.tolist()) == tokens


def test_text_comes_from_the_sample_or_from_to_text():
    assert stream_of(["hi"]).text(0) == "hi"
    assert stream_of([b"h\xff"]).text(0) == "h\ufffd"
    assert stream_of([{"text": "hi"}]).text(0) == "hi"
    assert stream_of([[104, 105]]).text(0) is None
    assert stream_of([[104, 105]], to_text=lambda ids: "".join(map(chr, ids))).text(0) == "hi"


@pytest.mark.parametrize(
    "more",
    [
        {"batch_size": 0},
        {"batch_size": 5, "world_size": 2},
        {"rank": 2, "world_size": 2},
        {"rank": -1},
        {"world_size": 0},
    ],
)
def test_refuses_impossible_layouts(more):
    with pytest.raises(ConfigError, match=r"batch_size|rank"):
        stream_of(**more)


@pytest.mark.parametrize("stages", [iter([1, 2]), 7, "text.bin", [*MIXED, [1]]])
def test_refuses_what_it_cannot_read_by_position(stages):
    with pytest.raises(StreamError, match="stages"):
        stream_of(stages)


def test_refuses_one_name_for_two_datasets_and_weights_for_strangers():
    with pytest.raises(ConfigError, match="two datasets"):
        stream_of([Stage(name="x", sources={"a": [1, 2]}), Stage(name="y", sources={"a": [3, 4]})])
    with pytest.raises(ConfigError, match="one weight"):
        stream_of([Stage(name="x", sources={"a": [1]}, weights={"b": 1.0})])
    with pytest.raises(ConfigError, match="hold no samples"):
        stream_of([])


@pytest.mark.parametrize("back_to", [0, 40, 60])
def test_a_replay_from_before_a_window_meets_what_was_met_then(back_to):
    """A window in the last repeat holds samples that the repeats before had trained."""
    stages = [Stage(name="s", sources={"a": A}, repeats=3)]
    stream = stream_of(stages, batch_size=5)
    met = {}
    while stream.position < 70:
        start = stream.position
        met[start] = stream.next_batch().ids
    stream.ledger.add(LedgerEntry(entry_id="w", reason="spike", window=(65, 80)))
    stream.load_state_dict({"position": back_to})
    while stream.position < 65:
        start = stream.position
        assert stream.next_batch().ids == met[start]
    held = {stream.order.locate(p)[1:] for p in range(65, 80)}
    assert not held & {sample_id[1:] for sample_id in all_ids(stream)}
