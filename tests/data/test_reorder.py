"""The rest of a stage in another order: nothing before it moves, nothing is lost."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.errors import StreamError
from foreshock.data.journalled import order_at
from foreshock.data.order import Order
from foreshock.data.stream import Stage, Stream

A, B = list(range(19)), list(range(100, 111))


def stages(repeats):
    weights = {"a": 1, "b": 3}
    return [
        Stage(name="one", sources={"a": A, "b": B}, repeats=2),
        Stage(name="two", sources={"a": A, "b": B}, weights=weights, num_samples=25, repeats=3),
        Stage(name="three", sources={"a": A}, repeats=repeats),
    ]


def stream_of(batch_size=4, repeats=2, **more):
    return Stream(stages(repeats), batch_size=batch_size, seed=3, collate=list, **more)


def order_of(stream, num):
    return [stream.order.locate(position) for position in range(num)]


REPEATS = [(0, 30), (30, 60), (60, 85), (85, 110), (110, 135), (135, 154), (154, 173)]


@given(
    changes=st.lists(st.tuples(st.integers(0, 172), st.integers(-(2**60), 2**60)), max_size=4),
    endless=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_a_repeat_visits_what_it_did_as_often_and_nothing_before_moves(changes, endless):
    stream = stream_of(repeats=None if endless else 2)
    before = order_of(stream, 173)
    for position, seed in changes:
        known = order_of(stream, 173)
        stream.reorder_from(position, seed)
        now = order_of(stream, 173)
        assert now[:position] == known[:position]
        stage_stop = next(stop for stop in (60, 135, 173) if position < stop)
        assert now[stage_stop:] == known[stage_stop:]
        stream.reorder_from(position, seed)
        assert order_of(stream, 173) == now
    after = order_of(stream, 173)
    for start, stop in REPEATS:
        assert Counter(after[start:stop]) == Counter(before[start:stop])


def test_the_rest_of_the_repeat_and_later_ones_come_in_another_order():
    stream = stream_of()
    before = order_of(stream, 173)
    stream.reorder_from(65, 1)
    after = order_of(stream, 173)
    assert after[:65] == before[:65]
    for start, stop in ((65, 85), (85, 110), (110, 135)):
        assert sum(x != y for x, y in zip(before[start:stop], after[start:stop], strict=True)) > 10
    other = stream_of()
    other.reorder_from(65, 2)
    assert order_of(other, 173)[65:85] != after[65:85]


def test_every_later_repeat_has_a_permutation_of_its_own():
    stream = Stream(
        [Stage(name="s", sources={"a": list(range(40))}, repeats=None)], batch_size=1, seed=0
    )
    plain = [stream.order.locate(p).index for p in range(400)]
    stream.reorder_from(0, 9)
    moves = []
    for start in range(0, 400, 40):
        now = [stream.order.locate(p).index for p in range(start, start + 40)]
        moves.append(tuple(plain[start : start + 40].index(each) for each in now))
    assert len(set(moves)) == 10
    assert all(sorted(move) == list(range(40)) for move in moves)


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_batches_follow_the_new_order_at_any_size(batch_size):
    stream, alone = stream_of(batch_size), stream_of(1)
    for one in (stream, alone):
        one.reorder_from(50, 4)
    found = []
    while len(found) < 160:
        found += stream.next_batch().ids
    assert found == [alone.next_batch().ids[0] for _ in range(len(found))]


@pytest.mark.parametrize("position", [-1, 173])
def test_a_position_outside_is_refused(position):
    with pytest.raises(StreamError, match="outside the order"):
        stream_of().reorder_from(position, 0)


def test_the_order_at_a_step_is_that_which_held_then():
    stream = stream_of()
    description = stream.describe()
    plain = Order.from_description(description)
    records = [
        {"kind": "data_reordered", "attempt": 1, "step": 20, "position": 40, "seed": 7},
        {"kind": "attempt_started", "attempt": 2, "step": 10},
        {"kind": "data_reordered", "attempt": 2, "step": 30, "position": 60, "seed": 8},
    ]
    changed = stream_of()
    changed.reorder_from(40, 7)
    once = order_of(changed, 173)
    changed.reorder_from(60, 8)
    twice = order_of(changed, 173)
    for attempt, step, expected in (
        (1, 20, [plain.locate(p) for p in range(173)]),
        (1, 21, once),
        (2, 11, once),
        (2, 30, once),
        (2, 31, twice),
        (3, 1, twice),
    ):
        order = order_at(description, records, attempt, step)
        assert [order.locate(p) for p in range(173)] == expected, (attempt, step)
    for damage in ({"position": -1}, {"position": 999}, {"seed": None}, {"attempt": "1"}):
        with pytest.raises(StreamError):
            order_at(description, [{**records[0], **damage}], 9, 9)
