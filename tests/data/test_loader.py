"""Loaders of the user's own: those that keep their state go back, others say why not."""

import json
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from foreshock.core.errors import ConfigError, StreamError
from foreshock.data.ledger import LedgerEntry
from foreshock.data.loader import LoaderStream, StatefulLoader, why_not_rewindable
from foreshock.data.requests import Request
from foreshock.data.stream import Stream
from foreshock.feed import Feed
from foreshock.snapshots.codec import decode, encode

NUMBERS = [torch.tensor([n]) for n in range(23)]


class Counting:
    """The protocol and no more: a shuffled loader that draws from torch's global generator."""

    def __init__(self, num=6):
        self.num, self.at, self.seed = num, 0, None
        self.resuming = False

    def __iter__(self):
        if not self.resuming:
            self.at, self.seed = 0, int(torch.randint(1 << 30, ()))
        torch.rand(3)  # as torch's loader draws a base seed, also where it goes on
        self.resuming = False
        return self._rest()

    def _rest(self):
        order = np.random.default_rng(self.seed).permutation(self.num)
        while self.at < self.num:
            self.at += 1
            yield int(order[self.at - 1])

    def state_dict(self):
        return {"at": self.at, "seed": self.seed}

    def load_state_dict(self, state):
        self.at, self.seed, self.resuming = state["at"], state["seed"], True


def stateful(num_workers=0, **more):
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    more = {"batch_size": 4, "shuffle": True, **more}
    return loaders.StatefulDataLoader(NUMBERS, num_workers=num_workers, **more)


MAKERS = {
    "protocol": Counting,
    "torchdata": stateful,
    "torchdata, sequential": lambda: stateful(shuffle=False),
    "torchdata, drop_last": lambda: stateful(drop_last=True),
}
WORKERS = {"torchdata, 2 workers": lambda: stateful(num_workers=2)}


def plain(data):
    return data.ravel().tolist() if isinstance(data, torch.Tensor) else data


def take(stream, num, noise=True):
    """`num` batches, with random numbers drawn in between as dropout would."""
    found = []
    for _ in range(num):
        batch = stream.next_batch()
        drawn = (torch.rand(()).item(), random.random(), np.random.rand()) if noise else None
        found.append((batch.positions, plain(batch.data), drawn))
    return found


def generators():
    return random.getstate(), np.random.get_state(), torch.random.get_rng_state()


def put_back(state):
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.random.set_rng_state(state[2])


def through_a_file(state):
    structure, tensors = encode(state)
    return decode(json.loads(json.dumps(structure)), tensors)


@pytest.mark.parametrize("name", [*MAKERS, *WORKERS])
def test_going_back_gives_the_same_batches_and_random_numbers(name):
    make = {**MAKERS, **WORKERS}[name]
    torch.manual_seed(0)
    loader = make()
    assert isinstance(loader, StatefulLoader)
    stream = LoaderStream(loader, repeats=3)
    states, found = {}, []
    steps = 15 if name == "protocol" else 14
    for step in range(steps):
        states[step] = (generators(), through_a_file(stream.state_dict()))
        found += take(stream, 1)
    assert len({tuple(np.atleast_1d(data)) for _, data, _ in found[:5]}) == 5
    for step in (12, 0, 5, 6, 3, 9) if name in MAKERS else (9, 0, 6):
        random_state, state = states[step]
        for where in (stream, LoaderStream(make(), repeats=3)):
            put_back(random_state)
            where.load_state_dict(state)
            assert where.position == step
            assert take(where, steps - step) == found[step:], step


@pytest.mark.parametrize("name", MAKERS)
def test_looking_at_the_state_changes_nothing(name):
    def run(look):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        stream = LoaderStream(MAKERS[name](), repeats=2)
        found = []
        for _ in range(9):
            if look:
                stream.state_dict()
            found += take(stream, 1)
        return found

    assert run(True) == run(False)


@pytest.mark.parametrize("name", MAKERS)
def test_batches_are_set_aside_by_position(name):
    torch.manual_seed(2)
    whole = take(LoaderStream(MAKERS[name](), repeats=2), 10, noise=False)
    torch.manual_seed(2)
    stream = LoaderStream(MAKERS[name](), repeats=2)
    start = stream.state_dict()
    before = take(stream, 4, noise=False)
    entry = LedgerEntry(entry_id="w", reason="spike", window=(2, 5))
    stream.apply({"kind": "quarantined", "entry": entry.to_json()})
    assert stream.ledger.num_samples == 3
    stream.load_state_dict(start)
    assert take(stream, 7, noise=False) == [
        one for n, one in enumerate(whole) if n not in (2, 3, 4)
    ]
    assert before == whole[:4]
    stream.apply({"kind": "released", "entry_id": "w", "ids": None, "position": 0})
    torch.manual_seed(2)
    stream.load_state_dict(start)
    assert take(stream, 10, noise=False)[:5] == whole[:5]


def test_the_data_ends_with_the_last_repeat_and_stays_ended():
    stream = LoaderStream(Counting(), repeats=2)
    take(stream, 12)
    for _ in range(2):
        with pytest.raises(StopIteration):
            stream.next_batch()
    state = stream.state_dict()
    again = LoaderStream(Counting(), repeats=2)
    again.load_state_dict(state)
    with pytest.raises(StopIteration):
        again.next_batch()
    more = LoaderStream(Counting(), repeats=3)
    more.load_state_dict(state)
    assert [one[0] for one in take(more, 6)] == [(n,) for n in range(12, 18)]


def test_an_endless_loader_that_is_empty_ends():
    with pytest.raises(StopIteration):
        LoaderStream(Counting(num=0), repeats=None).next_batch()
    assert len(take(LoaderStream(Counting(), repeats=None), 50)) == 50


def test_it_says_that_positions_are_set_aside_and_what_it_cannot_do():
    stream = LoaderStream(Counting())
    assert (stream.quarantines_by, Stream.quarantines_by) == ("position", "sample")
    for look in (stream.sample, stream.text, stream.tokens):
        with pytest.raises(StreamError, match="gives out each batch once"):
            look(0)
    with pytest.raises(StreamError, match="cannot be changed"):
        stream.apply({"kind": "data_reordered", "position": 1, "seed": 1})
    entry = LedgerEntry(entry_id="w", reason="spike", window=(2, 5))
    stream.ledger.add(entry)
    request = Request(
        request="0" * 16, command="reflow", entry_id="w", every_samples=1, watch_steps=16
    )
    with pytest.raises(StreamError, match="cannot give out again"):
        request.records(stream.ledger, stream.order, 9)
    with pytest.raises(ConfigError, match="repeats=0"):
        LoaderStream(Counting(), repeats=0)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"position": 1},
        {"position": -1, "repeat": 0, "in_repeat": 0, "loader": {}},
        {"position": True, "repeat": 0, "in_repeat": 0, "loader": {}},
        {"position": 1, "repeat": 0, "in_repeat": 0, "loader": {}, "more": 1},
        {"position": 1, "repeat": 0, "in_repeat": 0, "loader": {"odd": 1}},
        {"position": 1, "repeat": 0, "in_repeat": 0, "loader": None},
    ],
)
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(StreamError, match=r"state"):
        LoaderStream(Counting()).load_state_dict(state)


class Lines(IterableDataset):
    def __iter__(self):
        return iter(NUMBERS)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            DataLoader(NUMBERS, batch_size=4, shuffle=True),
            r"foreshock\.Stream\(loader\.dataset, batch_size=4, seed=0, collate=loader",
        ),
        (DataLoader(Lines(), batch_size=4), "over a Lines, a stream without state"),
        ([1, 2, 3], "a list has no state_dict and load_state_dict"),
        ((n for n in range(3)), "a generator has no state_dict"),
    ],
)
def test_what_cannot_go_back_is_told_with_what_to_do(source, said):
    import re  # noqa: PLC0415

    why = why_not_rewindable(source)
    assert re.search(said, why)
    assert "foreshock.Stream(" in why
    feed = Feed(source)
    assert feed.stream is None
    assert feed.why_not_rewindable == why
    assert feed.next_batch() is not None
    assert feed.take_positions() == []


def test_the_way_shown_for_a_plain_loader_works():
    loader = DataLoader(NUMBERS, batch_size=4, shuffle=True)
    stream = Stream(loader.dataset, batch_size=loader.batch_size, seed=0, collate=loader.collate_fn)
    assert stream.next_batch().data.shape == (4, 1)


def test_a_feed_takes_a_stateful_loader_as_a_stream():
    feed = Feed(Counting())
    assert isinstance(feed.stream, LoaderStream)
    assert feed.why_not_rewindable == ""
    feed.next_batch()
    feed.next_batch()
    assert feed.take_positions() == [0, 1]
    assert not feed.wants_losses


def test_a_feed_notes_the_loss_of_what_came_back():
    stream = Stream([[n] for n in range(40)], batch_size=4, seed=0, collate=list)
    stream.ledger.add(LedgerEntry(entry_id="w", reason="spike", window=(2, 3)))
    started = {"kind": "reflow_started", "entry_id": "w", "start": 9, "every_samples": 1}
    stream.apply({**started, "watch_steps": 16})
    feed = Feed(stream)
    noted = 0
    for _ in range(4):
        data = feed.next_batch()
        if feed.wants_losses:
            noted += 1
            feed.note_losses([1.0, 2.0])  # of another number: not those of this batch
            feed.note_losses([100.0 + value for (value,) in data])
            middle = float(np.median([100.0 + value for (value,) in data]))
    key = stream.ledger.samples("w")[0]
    assert noted == 1
    assert feed.loss_of("w", key, 9) == (100.0 + key[1], middle)
    assert feed.loss_of("w", key, 9) is None
    positions = feed.take_positions()
    assert positions == sorted(positions)
    assert len(positions) == 16
