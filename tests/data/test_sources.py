"""Datasets of every kind: torch's batched protocol, `datasets`, stable ids."""

from types import SimpleNamespace

import pytest
import torch

from foreshock.core.errors import ConfigError, StreamError
from foreshock.core.rule import Rule
from foreshock.data.stream import Stage, Stream


class Batched(torch.utils.data.Dataset):
    """Reads several at once, and says how it was read."""

    def __init__(self, size, broken=()):
        self.size, self.broken, self.reads = size, broken, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.reads.append(index)
        if index in self.broken:
            raise OSError("torn")
        return torch.tensor([index])

    def __getitems__(self, indices):
        self.reads.append(tuple(indices))
        if set(indices) & set(self.broken):
            raise OSError("torn")
        return [torch.tensor([index]) for index in indices]


class TooLong(Rule):
    name = "too_long"

    def can_judge(self, tokens, text):
        return text is not None

    def judge(self, tokens, text):
        return f"{len(text)} characters" if len(text) > 5 else None


def test_a_rank_reads_its_share_at_once_and_in_order():
    dataset = Batched(64)
    streams = [Stream(dataset, batch_size=16, seed=0, rank=rank, world_size=4) for rank in range(4)]
    batches = [stream.next_batch() for stream in streams]
    assert [len(read) for read in dataset.reads] == [4, 4, 4, 4]
    for batch in batches:
        assert batch.data[:, 0].tolist() == [each.index for each in batch.ids[batch.own]]


def test_a_sample_that_cannot_be_read_is_named_though_many_are_read():
    stream = Stream(Batched(16, broken=[5]), batch_size=16, seed=0)
    with pytest.raises(StreamError, match="index 5: the dataset raised OSError: torn"):
        stream.next_batch()
    assert stream.position == 0


def test_one_that_gives_another_number_is_read_one_by_one():
    dataset = Batched(16)
    dataset.__class__ = type("Odd", (Batched,), {"__getitems__": lambda self, indices: [0]})
    batch = Stream(dataset, batch_size=16, seed=0).next_batch()
    assert sorted(batch.data[:, 0].tolist()) == list(range(16))


def test_the_batched_protocol_changes_no_batch():
    plain = Stream([torch.tensor([n]) for n in range(40)], batch_size=8, seed=3)
    many = Stream(Batched(40), batch_size=8, seed=3)
    for _ in range(5):
        assert torch.equal(plain.next_batch().data, many.next_batch().data)


def table(texts, ids=None):
    datasets = pytest.importorskip("datasets")
    rows = {"text": texts, "doc": ids or [f"d{n}" for n in range(len(texts))]}
    return datasets.Dataset.from_dict(rows)


TEXTS = [("short" if n % 4 else f"much too long {n}") for n in range(16)]


def drain(stream):
    given = []
    while True:
        try:
            given += stream.next_batch().data
        except StopIteration:
            return given


def test_datasets_of_hugging_face_by_row_id():
    stream = Stream({"web": table(TEXTS)}, batch_size=4, seed=0, collate=list)
    stream.rules = [TooLong()]
    given = drain(stream)
    assert {row["doc"] for row in given} == {f"d{n}" for n in range(16) if n % 4}
    assert set(stream.ledger.samples("rule/too_long/web/4")) == {("web", 4)}
    assert all(entry.names == () for entry in stream.ledger.all_entries)
    assert stream.text_of(("web", 8)) == "much too long 8"
    assert stream.text(stream.order.last_visit("web", 8, 16)) == "much too long 8"


def test_stable_ids_are_followed_where_rows_have_moved():
    column = {"web": "doc"}
    stage = Stage(name="s", sources={"web": table(TEXTS)}, id_columns=column)
    stream = Stream([stage], batch_size=4, seed=0, collate=list)
    stream.rules = [TooLong()]
    drain(stream)
    records = [{"kind": "rejected", "entry": e.to_json()} for e in stream.ledger.all_entries]
    assert {entry.names for entry in stream.ledger.all_entries} == {
        (f"d{n}",) for n in range(0, 16, 4)
    }
    moved = table(TEXTS[::-1], [f"d{n}" for n in range(16)][::-1])
    stage = Stage(name="s", sources={"web": moved}, id_columns=column)
    again = Stream([stage], batch_size=4, seed=0, collate=list)
    for record in records:
        record["entry"]["since"] = 0
        again.apply(record)
    assert {row["doc"] for row in drain(again)} == {f"d{n}" for n in range(16) if n % 4}


def test_without_columns_a_moved_row_is_refused_rather_than_missed():
    rows = [{"doc": f"d{n}", "text": TEXTS[n]} for n in range(16)]
    stage = Stage(name="s", sources={"web": rows}, id_columns={"web": "doc"})
    stream = Stream([stage], batch_size=4, seed=0, collate=list)
    stream.rules = [TooLong()]
    drain(stream)
    record = {"kind": "rejected", "entry": stream.ledger.all_entries[0].to_json()}
    same = Stream([stage], batch_size=4, seed=0, collate=list)
    same.apply(record)
    assert same.ledger.num_samples == 1
    stage = Stage(name="s", sources={"web": rows[::-1]}, id_columns={"web": "doc"})
    with pytest.raises(StreamError, match="is another now"):
        Stream([stage], batch_size=4, seed=0).apply(record)


def test_id_columns_must_be_there():
    with pytest.raises(ConfigError, match=r"id_columns for \['b'\]"):
        Stream([Stage(name="s", sources={"a": [1]}, id_columns={"b": "id"})], batch_size=1, seed=0)
    stage = Stage(name="s", sources={"a": [{"text": "long enough"}]}, id_columns={"a": "id"})
    stream = Stream([stage], batch_size=1, seed=0, collate=list)
    stream.rules = [TooLong()]
    with pytest.raises(StreamError, match="has no 'id'"):
        stream.next_batch()


def test_what_is_no_mapping_has_no_stable_id():
    stage = Stage(name="s", sources={"a": [SimpleNamespace(id=1)]}, id_columns={"a": "id"})
    stream = Stream([stage], batch_size=1, seed=0, collate=list, to_text=lambda _: "long enough")
    stream.rules = [TooLong()]
    with pytest.raises(StreamError, match="has no 'id'"):
        stream.next_batch()
