"""Reflow: samples come back one by one, the order stays one function, each is watched."""

import itertools
import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.errors import StreamError
from foreshock.data.ledger import Ledger, LedgerEntry
from foreshock.data.order import Order, SourceShare, StageOrder
from foreshock.data.reflow import Outcome, Reflow
from foreshock.data.stream import Stage, Stream
from tests.data.whole_order import admitted

A = [[n] for n in range(23)]
B = [[1000 + n] for n in range(11)]
STAGES = [
    Stage(name="warm", sources={"a": A}),
    Stage(
        name="main", sources={"a": A, "b": B}, weights={"a": 1, "b": 2}, num_samples=40, repeats=2
    ),
]


def stream_of(batch_size=4, records=(), stages=STAGES, **more):
    stream = Stream(stages, batch_size=batch_size, seed=5, collate=list, **more)
    for record in json.loads(json.dumps(list(records))):
        stream.apply(record)
    return stream


def drain(stream):
    batches = []
    while True:
        try:
            batches.append(stream.next_batch())
        except StopIteration:
            return batches


def window(entry_id, start, stop):
    entry = LedgerEntry(entry_id=entry_id, reason="spike", window=(start, stop))
    return {"kind": "quarantined", "entry": entry.to_json()}


def named(entry_id, *ids, since=0):
    entry = LedgerEntry(entry_id=entry_id, reason="bad", ids=ids, since=since)
    return {"kind": "rejected", "entry": entry.to_json()}


def started(entry_id, start, every, watch=16, ids=None):
    reflow = Reflow(entry_id=entry_id, start=start, every_samples=every, watch_steps=watch, ids=ids)
    return {"kind": "reflow_started", **reflow.to_json()}


TOTAL = stream_of().order.total
BASE = [tuple(stream_of().order.locate(p)) for p in range(TOTAL)]


def histories(seed):
    """A random history of records, each as the run itself could write it."""
    rng = random.Random(seed)
    records, ledger_ids = [], []
    model = stream_of()
    for number in range(rng.randint(1, 8)):
        kind = rng.choice(["window", "named", "release", "reflow", "reflow", "outcome", "outcome"])
        entry_id = rng.choice(ledger_ids) if ledger_ids else None
        if kind == "window" or entry_id is None:
            start = rng.randrange(TOTAL - 1)
            record = window(f"e{number}", start, min(TOTAL, start + rng.randint(1, 12)))
            ledger_ids.append(f"e{number}")
        elif kind == "named":
            ids = {BASE[rng.randrange(TOTAL)][1:] for _ in range(rng.randint(1, 4))}
            record = named(f"e{number}", *sorted(ids), since=rng.randrange(TOTAL))
            ledger_ids.append(f"e{number}")
        elif kind == "release":
            keys = model.ledger.samples(entry_id)
            ids = None if rng.random() < 0.3 else [list(k) for k in keys if rng.random() < 0.5]
            record = {"kind": "released", "entry_id": entry_id, "ids": ids}
            record["position"] = rng.randrange(TOTAL)
        elif kind == "reflow":
            keys = [key for key in model.ledger.samples(entry_id) if rng.random() < 0.6]
            ids = tuple(keys) if rng.random() < 0.5 else None
            record = started(entry_id, rng.randrange(TOTAL), rng.randint(1, 9), ids=ids)
        else:
            slots = [
                (course, number)
                for course in model.ledger.courses
                for number in range(len(course.keys))
                if course.number_at(course.slot(number)) is not None
            ]
            if not slots:
                continue
            course, nth = rng.choice(slots)
            outcome = Outcome(
                entry_id=course.reflow.entry_id,
                key=course.keys[nth],
                slot=course.slot(nth),
                outcome=rng.choice(["well", "alarmed", "passed_over"]),
                position=course.slot(nth) + rng.randint(1, 20),
                reason="r",
            )
            record = {"kind": "reflowed", **outcome.to_json()}
        records.append(record)
        model.apply(record)
    return records


@given(seed=st.integers(0, 2**32), batch_size=st.integers(1, 50))
@settings(deadline=None, max_examples=300)
def test_the_order_is_that_of_brute_force_for_every_history_and_batch_size(seed, batch_size):
    records = histories(seed)
    expected = admitted(BASE, records)
    batches = drain(stream_of(batch_size, records))
    parts = [expected[at : at + batch_size] for at in range(0, len(expected), batch_size)]
    assert [list(one.positions) for one in batches] == [sorted(part) for part in parts]
    assert [each for one in batches for each in one.ids] == [
        BASE[p] for one in batches for p in one.positions
    ]
    assert all(
        sample == {"a": A, "b": B}[one.source][one.index]
        for batch in batches
        for sample, one in zip(batch.data, batch.ids, strict=True)
    )


@given(seed=st.integers(0, 2**32), world_size=st.integers(1, 5), per_rank=st.integers(1, 4))
@settings(deadline=None, max_examples=100)
def test_ranks_share_the_batches_of_one(seed, world_size, per_rank):
    records = histories(seed)
    size = world_size * per_rank
    alone = drain(stream_of(size, records))
    ranks = [
        drain(stream_of(size, records, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    for batch, *parts in zip(alone, *ranks, strict=False):
        whole = len(batch.positions) // world_size * world_size
        if whole == len(batch.positions):
            assert [sample for part in parts for sample in part.data] == batch.data
        assert {part.positions for part in parts} == {parts[0].positions}
        assert {part.returned for part in parts} == {parts[0].returned}
        assert [p for part in parts for p in part.positions[part.own]] == list(parts[0].positions)


@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(1, 9), min_size=1, max_size=30))
@settings(deadline=None, max_examples=150)
def test_restarts_with_other_batch_sizes_give_out_the_same_samples(seed, cuts):
    records = histories(seed)
    state, given = {"position": 0}, []
    for size in cuts:
        stream = stream_of(size, records)
        stream.load_state_dict(json.loads(json.dumps(state)))
        try:
            given.append(stream.next_batch().positions)
        except StopIteration:
            break
        state = stream.state_dict()
    flat = [p for part in given for p in part]
    expected = admitted(BASE, records)[: len(flat)]
    at = 0
    for part in given:
        assert list(part) == sorted(expected[at : at + len(part)])
        at += len(part)


@given(seed=st.integers(0, 2**32), every=st.integers(1, 9), back=st.integers(0, 60))
@settings(deadline=None, max_examples=60)
def test_what_came_before_the_reflow_is_replayed_exactly(seed, every, back):
    records = [window("w", 20, 32)]
    stream = stream_of(4, records)
    met = {}
    while stream.position < 60:
        state = json.dumps(stream.state_dict())
        met[state] = stream.next_batch().positions
    start = stream.position + 1
    stream.apply(started("w", start, every))
    for state, positions in met.items():
        if json.loads(state)["position"] >= back:
            stream.load_state_dict(json.loads(state))
            assert stream.next_batch().positions == positions


def test_every_sample_comes_back_once_at_the_stated_rate_beside_the_others():
    stages = [Stage(name="s", sources={"a": [[n] for n in range(400)]})]
    records = [window("w", 40, 50), started("w", 101, 16)]
    batches = drain(stream_of(8, records, stages))
    given = [position for batch in batches for position in batch.positions]
    assert Counter(given) == Counter(range(400))  # none lost, none twice
    came = [(n, one) for n, batch in enumerate(batches) for one in batch.returned]
    assert [one.address for _, one in came] == list(range(40, 50))
    assert [one.slot for _, one in came] == list(range(101, 101 + 160, 16))
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(came)]
    assert set(gaps) <= {2, 3} and len(came) == 10  # 16 others and itself: two batches of 8
    assert max(len(batch.returned) for batch in batches) == 1


def recent_of(batches):
    return [(step, batch.positions) for step, batch in enumerate(batches, start=1)]


def run_watched(stream, *, num_steps, alarm=lambda step, batch: False, batches=None):
    """A run that looks after each step; returns its batches and the outcomes journalled."""
    batches = [] if batches is None else batches
    told = []
    for _ in range(num_steps):
        batches.append(stream.next_batch())
        step = len(batches)
        onsets = [step] if alarm(step, batches[-1]) else []
        found = stream.ledger.judge(
            recent_of(batches)[-200:], step, onsets, position=stream.position
        )
        for outcome in found:
            told.append((step, outcome))
            stream.apply({"kind": "reflowed", **json.loads(json.dumps(outcome.to_json()))})
    return batches, told


SINGLE = [Stage(name="s", sources={"a": [[n] for n in range(40)]}, repeats=None)]


def test_a_sample_that_does_no_harm_is_released_and_trains_again():
    records = [window("w", 10, 14), started("w", 21, 12, watch=4)]
    stream = stream_of(4, records, SINGLE)
    keys = set(stream.ledger.samples("w"))
    batches, told = run_watched(stream, num_steps=30)
    assert [one.outcome for _, one in told] == ["well"] * 4
    came = {one.key: step for step, batch in enumerate(batches, 1) for one in batch.returned}
    assert set(came) == keys
    for step, one in told:
        assert one.trained_step == came[one.key]
        assert step == came[one.key] + 3
        assert not stream.ledger.holds(*one.key)
    assert stream.ledger.was_released("w")
    later = [each[1:] for batch in batches[max(s for s, _ in told) :] for each in batch.ids]
    assert keys & set(later)


def test_one_that_alarms_again_stays_for_good_and_is_not_given_on_a_replay():
    records = [window("w", 10, 14), started("w", 21, 24, watch=4)]
    stream = stream_of(4, records, SINGLE)
    bad = stream.ledger.samples("w")[1]
    start = stream.state_dict()
    _, told = run_watched(
        stream, num_steps=40, alarm=lambda _, batch: bad in [one.key for one in batch.returned]
    )
    outcomes = {one.key: one for _, one in told}
    assert [one.outcome for one in outcomes.values()].count("alarmed") == 1
    assert outcomes[bad].outcome == "alarmed"
    assert "an alarm began in step" in outcomes[bad].reason
    assert stream.ledger.held_by("w") == [bad]
    stream.load_state_dict(start)
    again = [stream.next_batch() for _ in range(40)]
    assert bad not in [each[1:] for batch in again for each in batch.ids]
    assert sum(len(batch.returned) for batch in again) == 3
    with_new = started("w", stream.position + 1, 4)
    stream.apply(with_new)
    assert stream.ledger.courses[-1].keys == ()  # for good: only a release gives it back
    stream.ledger.release("w", [bad], stream.position)
    assert not stream.ledger.holds(*bad)


def test_an_alarm_before_the_sample_came_or_after_its_watch_is_not_its_fault():
    records = [window("w", 10, 11), started("w", 21, 12, watch=4)]
    stream = stream_of(4, records, SINGLE)
    came = next(step for step in range(1, 30) if stream_of_steps(records, step)[-1].returned)
    for onset, outcome in ((came - 1, "well"), (came, "alarmed"), (came + 3, "alarmed")):
        stream = stream_of(4, records, SINGLE)
        _, told = run_watched(stream, num_steps=20, alarm=lambda step, _, at=onset: step == at)
        assert [one.outcome for _, one in told] == [outcome], onset
    stream = stream_of(4, records, SINGLE)
    _, told = run_watched(stream, num_steps=20, alarm=lambda step, _: step == came + 4)
    assert [one.outcome for _, one in told] == ["well"]


def stream_of_steps(records, num):
    stream = stream_of(4, records, SINGLE)
    return [stream.next_batch() for _ in range(num)]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_a_sample_at_the_end_of_a_batch_is_blamed_as_any_other(batch_size):
    """The watermark then stands before the position that the sample stands before."""
    for start in range(30, 36):
        records = [window("w", 10, 13), started("w", start, 7, watch=3)]
        stream = stream_of(batch_size, records, SINGLE)
        seen = []
        _, told = run_watched(
            stream,
            num_steps=60 // batch_size + 20,
            alarm=lambda _, batch, seen=seen: bool(batch.returned) and not seen.append(batch),
        )
        assert len(seen) == 3
        assert [one.outcome for _, one in told] == ["alarmed"] * 3
        assert [one.key for _, one in told] == [b.returned[0].key for b in seen]


def test_a_restart_in_the_middle_of_a_watch_decides_alike():
    records = [window("w", 10, 14), started("w", 21, 12, watch=6)]
    whole = stream_of(4, records, SINGLE)
    _, expected = run_watched(whole, num_steps=40)
    for cut in range(1, 39):
        first = stream_of(4, records, SINGLE)
        batches, told = run_watched(first, num_steps=cut)
        journal = [*records, *({"kind": "reflowed", **one.to_json()} for _, one in told)]
        second = stream_of(4, journal, SINGLE)
        second.load_state_dict(first.state_dict())
        _, rest = run_watched(second, num_steps=40 - cut, batches=batches)
        assert told + rest == expected
        assert second.ledger.to_json() == whole.ledger.to_json()


def test_a_sample_that_cannot_come_back_is_passed_over_with_the_reason():
    order = stream_of(stages=SINGLE).order
    inside, ahead = order.locate(10)[1:], order.locate(39)[1:]
    records = [
        named("e", inside, ahead),
        named("other", inside),
        started("e", 21, 4),
    ]
    stream = stream_of(4, records, SINGLE)
    batches, told = run_watched(stream, num_steps=8)
    assert not any(batch.returned for batch in batches)
    why = {one.key: (one.outcome, one.reason) for _, one in told}
    assert why[inside] == ("passed_over", "entry other holds it as well")
    assert why[ahead][0] == "passed_over"
    assert "has not been skipped yet" in why[ahead][1]
    assert len(stream.ledger.held_by("e")) == 2  # and they may be brought back another time
    assert len(stream.ledger.to_bring_back("e", 60)) == 2


def test_another_rate_takes_over_without_losing_or_repeating_a_sample():
    stages = [Stage(name="s", sources={"a": [[n] for n in range(400)]})]
    records = [window("w", 40, 50), started("w", 101, 30), started("w", 170, 4)]
    batches = drain(stream_of(8, records, stages))
    came = [one for batch in batches for one in batch.returned]
    assert sorted(one.address for one in came) == list(range(40, 50))
    assert [one.slot for one in came] == [101, 131, 161, *range(170, 170 + 28, 4)]


def test_a_release_ends_the_reflow_of_what_is_left():
    stages = [Stage(name="s", sources={"a": [[n] for n in range(100)]}, repeats=2)]
    records = [window("w", 10, 20), started("w", 31, 10)]
    records.append({"kind": "released", "entry_id": "w", "ids": None, "position": 60})
    batches = drain(stream_of(5, records, stages))
    assert [one.slot for batch in batches for one in batch.returned] == [31, 41, 51]
    times = Counter(each[1:] for batch in batches for each in batch.ids)
    assert len(times) == 100
    assert times.total() == 200 - 10 + 3 - sum(
        stream_of(stages=stages).order.last_visit(*key, 200) < 60
        for key in stream_of(records=records, stages=stages).ledger.samples("w")
    )


def test_reflow_needs_an_order_and_an_entry():
    ledger = Ledger()
    ledger.add(LedgerEntry(entry_id="e", reason="r", ids=(("a", 1),)))
    with pytest.raises(StreamError, match="needs an order"):
        ledger.start_reflow(Reflow(entry_id="e", start=0, every_samples=1, watch_steps=1))
    with pytest.raises(StreamError, match="'x'"):
        stream_of().ledger.start_reflow(
            Reflow(entry_id="x", start=0, every_samples=1, watch_steps=1)
        )


@pytest.mark.parametrize(
    "change", [{"start": -1}, {"every_samples": 0}, {"watch_steps": 0}, {"watch_steps": 101}]
)
def test_impossible_rates_are_refused(change):
    good = {"entry_id": "e", "start": 0, "every_samples": 1, "watch_steps": 1}
    with pytest.raises(StreamError, match="needs"):
        Reflow(**{**good, **change})


def test_rules_judge_what_comes_back_but_not_the_one_that_set_it_aside():
    from tests.data.test_stream import NoMultiples  # noqa: PLC0415

    stages = [Stage(name="s", sources={"a": [[n] for n in range(1, 60)]})]
    stream = stream_of(4, stages=stages)
    stream.rules = [NoMultiples(of=10)]
    told = []
    stream.on_reject = lambda entry, position: told.append((entry, position))
    for _ in range(10):
        stream.next_batch()
    start = stream.position + 1
    for number, (entry, _) in enumerate(told):
        stream.apply(started(entry.entry_id, start + 2 * number, 1))
    num = len(told)
    assert num >= 2
    rest = drain(stream)
    came = [sample for batch in rest for sample in batch.data if sample[0] % 10 == 0]
    assert len(came) == num
    assert len(told) == 5


def order_with(shares, num_samples):
    sources = tuple(
        SourceShare(name=name, num_samples=size, share=share)
        for (name, size), share in zip((("a", 7), ("b", 12)), shares, strict=True)
    )
    return StageOrder(name="m", sources=sources, num_samples=num_samples, repeats=3)


@given(
    shares=st.one_of(st.just((None, None)), st.tuples(st.floats(1, 5), st.floats(1, 5))),
    num_samples=st.sampled_from([None, 9, 30, 60]),
    seed=st.integers(0, 99),
    reorders=st.lists(st.tuples(st.floats(0, 0.999), st.integers(-9, 9)), max_size=3),
    before=st.floats(0, 1.1),
)
@settings(deadline=None, max_examples=150)
def test_the_last_visit_is_that_of_a_search(shares, num_samples, seed, reorders, before):
    warm = StageOrder(name="w", sources=(SourceShare(name="a", num_samples=7),))
    order = Order([warm, order_with(shares, num_samples)], seed)
    for share, key in reorders:
        order.reorder_from(int(share * order.total), key)
    limit = int(before * order.total)
    found = [order.locate(p)[1:] for p in range(order.total)]
    for source, size in order.sizes.items():
        for index in range(size):
            places = [p for p in range(min(limit, order.total)) if found[p] == (source, index)]
            assert order.last_visit(source, index, limit) == (places[-1] if places else None)
    with pytest.raises(StreamError, match="'c'"):
        order.last_visit("c", 0, 9)


def test_the_first_outcome_of_a_slot_stands():
    records = [window("w", 10, 14), started("w", 21, 12)]
    stream = stream_of(4, records, SINGLE)
    key = stream.ledger.samples("w")[0]
    base = {"entry_id": "w", "key": key, "slot": 21, "position": 40, "reason": "r"}
    stream.ledger.settle(Outcome(**base, outcome="alarmed"))
    stream.ledger.settle(Outcome(**base, outcome="well"))
    assert stream.ledger.holds(*key)
    assert stream.ledger.courses[0].outcomes[0].outcome == "alarmed"


def test_nothing_is_said_of_a_slot_before_it_has_passed():
    ahead = stream_of(stages=SINGLE).order.locate(39)[1:]
    stream = stream_of(4, [named("e", ahead), started("e", 20, 4)], SINGLE)
    assert stream.ledger.judge([(1, (19,))], 1, position=20) == []
    (outcome,) = stream.ledger.judge([(1, (19,)), (2, (20,))], 2, position=21)
    assert outcome.outcome == "passed_over"
