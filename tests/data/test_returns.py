"""Given back and brought back: whatever happens in between, each sample trains once."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.errors import StreamError
from foreshock.data.ledger import LedgerEntry
from foreshock.data.requests import Request
from foreshock.data.returns import GIVEN_BACK_EVERY, given_back, reflowed, signed
from foreshock.data.stream import Stage, Stream

NUM = 240
SAMPLES = [[n] for n in range(NUM)]
Key = tuple[str, int]


class Run:
    """A run of nothing but data over one pass, which goes back, dies and changes its batches."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.records: list[dict[str, Any]] = []
        self.kept: list[tuple[dict[str, int], int]] = [({"position": 0}, 0)]
        self.trained: list[tuple[int, tuple[int, ...]]] = []
        self.start({"position": 0})

    def start(self, state: dict[str, int]) -> None:
        """A process begins, with batches and ranks of its own."""
        world = self.rng.choice([1, 2, 3])
        batch_size = world * self.rng.randint(1, 4)
        stages = [Stage(name="s", sources={"a": SAMPLES})]
        self.ranks = [
            Stream(
                stages,
                batch_size=batch_size,
                seed=1,
                collate=list,
                rank=rank,
                world_size=world,
            )
            for rank in range(world)
        ]
        for stream in self.ranks:
            for record in self.records:
                stream.apply(record)
            stream.load_state_dict(state)

    @property
    def stream(self) -> Stream:
        return self.ranks[0]

    def write(self, told: list[tuple[str, dict[str, Any]]]) -> None:
        for kind, fields in told:
            record = json.loads(json.dumps({"kind": kind, **fields}))
            self.records.append(record)
            for stream in self.ranks:
                stream.apply(record)

    def step(self) -> bool:
        try:
            batches = [stream.next_batch() for stream in self.ranks]
        except StopIteration:
            return False
        assert len({batch.positions for batch in batches}) == 1
        number = self.trained[-1][0] + 1 if self.trained else 1
        self.trained.append((number, batches[0].positions))
        ledgers = [stream.ledger for stream in self.ranks]
        told = [
            one.judge(self.trained[-200:], number, [], position=self.stream.position)
            for one in ledgers
        ]
        assert all(one == told[0] for one in told)
        self.write([("reflowed", one.to_json()) for one in told[0]])
        if number % 3 == 0:
            self.kept.append((self.stream.state_dict(), number))
        return True

    def until(self, position: int) -> None:
        while self.stream.position < position and self.step():
            pass

    def back(self, position: int) -> None:
        """To the newest state of at most a position, in this process or in another."""
        while self.kept[-1][0]["position"] > position:
            self.kept.pop()
        state, number = self.kept[-1]
        self.trained = [one for one in self.trained if one[0] <= number]
        if self.rng.random() < 0.5:
            self.start(state)
        for stream in self.ranks:
            stream.load_state_dict(state)

    def set_aside(self, entry_id: str, start: int, stop: int) -> None:
        self.write([aside(entry_id, start, stop)])
        self.back(start)

    @property
    def times(self) -> Counter[int]:
        order = self.stream.order
        return Counter(order.locate(p).index for _, places in self.trained for p in places)


def aside(entry_id: str, start: int, stop: int) -> tuple[str, dict[str, Any]]:
    entry = LedgerEntry(entry_id=entry_id, reason="spike", window=(start, stop))
    return "quarantined", {"entry": entry.to_json()}


def recovered(seed: int) -> tuple[Run, dict[str, list[Key]], set[Key]]:
    """A run whose incident took one to three windows, each over the last and longer."""
    run = Run(seed)
    rng = run.rng
    run.until(rng.randint(4, 80))
    first = max(0, run.stream.position - rng.randint(1, 12))
    stop = run.stream.position
    entries = []
    for number in range(rng.randint(1, 3)):
        stop = min(NUM - 60, stop + rng.randint(0, 20))
        start = max(0, first - rng.randint(0, 3) * number)
        entries.append(f"plan{number + 1}/0")
        run.set_aside(entries[-1], start, max(stop, start + 1))
        run.until(min(NUM - 70, run.stream.position + rng.randint(0, 30)))
    ledger = run.stream.ledger
    everything = sorted({key for one in entries for key in ledger.samples(one)})
    needed = {key for key in everything if rng.random() < 0.4}
    cleared = {one: [key for key in ledger.samples(one) if key not in needed] for one in entries}
    return run, {entry: keys for entry, keys in cleared.items() if keys}, needed


def shaken(run: Run) -> None:
    """Go back somewhere, die, change the batches; then to the end."""
    for _ in range(run.rng.randint(0, 3)):
        run.until(run.stream.position + run.rng.randint(0, 25))
        run.back(run.rng.randint(0, run.stream.position))
    run.until(NUM)
    while run.step():
        pass


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=200)
def test_what_is_given_back_trains_once_and_what_is_needed_does_not(seed: int) -> None:
    """Wherever the run stands in the window when the finding comes, and whatever comes then."""
    run, cleared, needed = recovered(seed)
    total = run.stream.order.total
    run.write(given_back(run.stream.ledger, cleared, run.stream.position, total))
    shaken(run)
    left_over = run.stream.leftover_samples
    aside = {index for _, index in needed}
    assert not aside & run.times.keys()
    assert set(run.times.values()) == {1}
    assert NUM - len(aside) - run.times.total() <= left_over
    assert all(run.stream.ledger.holds(*key) for key in needed)


@given(seed=st.integers(0, 2**32), every=st.integers(1, 4))
@settings(deadline=None, max_examples=150)
def test_then_the_needed_ones_come_back_one_by_one(seed: int, every: int) -> None:
    """What no alarm follows is released, as far as the data reaches; nothing comes twice."""
    run, cleared, needed = recovered(seed)
    ledger, total = run.stream.ledger, run.stream.order.total
    run.write(given_back(ledger, cleared, run.stream.position, total))
    run.until(run.stream.position + run.rng.randint(0, 30))
    entries = [one.entry_id for one in run.stream.ledger.all_entries]
    told = reflowed(
        run.stream.ledger,
        entries,
        run.stream.position,
        every_samples=every,
        watch_steps=3,
        ids=needed,
    )
    slots = [
        fields["start"] + n * every
        for kind, fields in told
        if kind == "reflow_started"
        for n in range(len(fields["ids"]))
    ]
    assert len(slots) == len(needed) == len(set(slots))
    run.write(told)
    shaken(run)
    reached = sum(slot < total for slot in slots)
    assert set(run.times.values()) == {1}
    came = {index for _, index in needed} & run.times.keys()
    assert len(came) >= reached - run.stream.leftover_samples - 1
    held = sum(run.stream.ledger.holds(*key) for key in needed)
    assert held <= len(needed) - len(came) + 16 * 12  # those at the very end are watched still


def test_where_the_data_would_end_it_comes_closer() -> None:
    run = Run(0)
    run.set_aside("w", 10, 40)
    run.until(200)
    told = given_back(run.stream.ledger, {"w": run.stream.ledger.samples("w")}, 200, NUM)
    ((_, fields),) = told
    assert fields["every_samples"] == (NUM - 201) // 30 == 1
    endless = given_back(run.stream.ledger, {"w": run.stream.ledger.samples("w")}, 200, None)
    assert endless[0][1]["every_samples"] == GIVEN_BACK_EVERY


def test_what_lies_ahead_is_released_and_what_was_skipped_comes_back() -> None:
    run = Run(0)
    run.until(26)
    run.write([aside("w", 10, 40)])  # and the run goes on where it is
    position, ledger = run.stream.position, run.stream.ledger
    told = given_back(ledger, {"w": ledger.samples("w")}, position, NUM)
    assert [kind for kind, _ in told] == ["released", "reflow_started"]
    ahead = {run.stream.order.locate(place)[1:] for place in range(position, 40)}
    passed = {run.stream.order.locate(place)[1:] for place in range(10, position)}
    assert {tuple(key) for key in told[0][1]["ids"]} == ahead
    assert {tuple(key) for key in told[1][1]["ids"]} == passed


def test_what_is_on_its_way_or_gone_is_left_alone() -> None:
    run = Run(0)
    run.set_aside("w", 10, 30)
    run.until(60)
    ledger = run.stream.ledger
    keys = ledger.samples("w")
    told = given_back(ledger, {"w": keys}, run.stream.position, NUM)
    run.write(told)
    assert given_back(ledger, {"w": keys}, run.stream.position, NUM) == []
    assert ledger.coming_back("w") == set(keys)
    with pytest.raises(StreamError, match="does not name"):
        given_back(ledger, {"w": [("a", 10**6)]}, 60, NUM)
    with pytest.raises(StreamError, match="nothing to do"):
        signed([], "0" * 16)


def test_one_that_alarmed_is_given_back_by_nothing_but_a_release() -> None:
    run = Run(0)
    run.set_aside("w", 10, 12)
    run.until(20)
    ledger = run.stream.ledger
    keys = ledger.samples("w")
    run.write(reflowed(ledger, ["w"], run.stream.position, every_samples=8, watch_steps=16))
    course = ledger.courses[0]
    outcome = {"entry_id": "w", "key": list(keys[0]), "slot": course.slot(0), "position": 40}
    run.write([("reflowed", {**outcome, "outcome": "alarmed", "reason": "r"})])
    for _ in range(2):
        told = given_back(ledger, {"w": keys}, 60, NUM)
        assert all([list(keys[0])] not in [f.get("ids")] for _, f in told)
        assert list(keys[0]) not in [one for _, f in told for one in f["ids"]]
    assert ledger.holds(*keys[0])
    request = Request(request="0" * 16, command="release", entry_id="w", ids=(keys[0],))
    run.write(request.records(ledger, run.stream.order, 60))
    assert not ledger.holds(*keys[0])


def test_entries_that_hold_the_same_sample_do_not_keep_each_other_from_it() -> None:
    """The second window of an incident lies over the first: a reflow of both brings all back."""
    run = Run(3)
    run.set_aside("plan1/0", 20, 26)
    run.set_aside("plan2/0", 20, 32)
    run.until(50)
    told = reflowed(
        run.stream.ledger,
        ["plan1/0", "plan2/0"],
        run.stream.position,
        every_samples=2,
        watch_steps=2,
    )
    assert [kind for kind, _ in told] == ["reflow_started", "released", "reflow_started"]
    run.write(told)
    shaken(run)
    assert set(run.times.values()) == {1}
    assert run.times.total() + run.stream.leftover_samples >= NUM
    assert run.stream.ledger.num_samples == 0


def test_a_window_that_still_lies_ahead_comes_back_once_it_was_skipped() -> None:
    run = Run(5)
    run.until(20)
    run.set_aside("w", run.stream.position, 60)
    told = reflowed(run.stream.ledger, ["w"], run.stream.position, every_samples=1, watch_steps=1)
    ((_, fields),) = told
    assert fields["start"] == 60
    run.write(told)
    shaken(run)
    assert set(run.times.values()) == {1}
    assert not [one for one in run.records if one.get("outcome") == "passed_over"]
