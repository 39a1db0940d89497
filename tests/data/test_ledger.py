import json

import pytest

from foreshock.core.errors import StreamError
from foreshock.data.journalled import apply_record, reorder
from foreshock.data.ledger import Ledger, LedgerEntry
from foreshock.data.order import Order, SourceShare, StageOrder
from foreshock.data.reflow import Reflow

ORDER = Order(
    [
        StageOrder(
            name="s",
            sources=(
                SourceShare(name="a", num_samples=10),
                SourceShare(name="b", num_samples=5),
            ),
            repeats=2,
        )
    ],
    seed=0,
)


def by_ids(entry_id, *ids, **more):
    return LedgerEntry(entry_id=entry_id, reason=more.pop("reason", "r"), ids=ids, **more)


def by_window(entry_id, start, stop, **more):
    return LedgerEntry(entry_id=entry_id, reason="spike", window=(start, stop), **more)


def test_a_window_holds_its_samples_wherever_they_stand():
    ledger = Ledger(ORDER)
    ledger.add(by_window("w", 3, 7))
    inside = {ORDER.locate(p)[1:] for p in range(3, 7)}
    assert ledger.num_samples == 4
    held = [p for p in range(30) if ledger.holds(*ORDER.locate(p)[1:])]
    assert held[:4] == [3, 4, 5, 6]
    assert len(held) == 8  # each sample once more in the second repeat
    assert {ORDER.locate(p)[1:] for p in held[4:]} == inside


def test_samples_seen_twice_in_a_window_count_once():
    ledger = Ledger(ORDER)
    ledger.add(by_window("w", 0, 30))
    assert ledger.num_samples == 15
    ledger.release("w")
    assert ledger.num_samples == 0


def test_adding_twice_is_adding_once():
    ledger = Ledger()
    for _ in range(2):
        ledger.add(by_ids("e", ("a", 1)))
    ledger.release("e")
    assert not ledger.holds("a", 1)


def test_one_id_cannot_mean_two_decisions():
    ledger = Ledger()
    ledger.add(by_ids("e", ("a", 1)))
    with pytest.raises(StreamError, match="another content"):
        ledger.add(by_ids("e", ("a", 2)))


def test_a_sample_is_held_until_its_last_entry_is_released():
    ledger = Ledger()
    ledger.add(by_ids("e", ("a", 1)))
    ledger.add(by_ids("f", ("a", 1), ("a", 2)))
    ledger.release("e")
    ledger.release("e")
    assert ledger.holds("a", 1)
    ledger.release("f")
    assert not ledger.holds("a", 1)
    assert ledger.entries == ()


def test_replaying_the_journal_does_not_undo_a_release():
    ledger = Ledger()
    for _ in range(3):
        ledger.add(by_ids("e", ("a", 1)))
        ledger.release("e")
        ledger.add(by_ids("e", ("a", 1)))
    assert not ledger.holds("a", 1)
    assert ledger.was_released("e")


def test_an_unknown_id_cannot_be_released():
    with pytest.raises(StreamError, match="'x'"):
        Ledger().release("x")


def test_counts_by_rule_or_reason_without_double_counting():
    ledger = Ledger(ORDER)
    ledger.add(by_ids("1", ("a", 1), reason="share 0.9 > 0.5", rule="repetition"))
    ledger.add(by_ids("2", ("a", 2), ("a", 1), reason="share 0.8 > 0.5", rule="repetition"))
    ledger.add(by_window("3", 0, 3, incident=4))
    assert ledger.num_by_reason() == {"repetition": 2, "spike": 3}


def test_is_rebuilt_from_its_records_however_often_they_are_replayed():
    records = [
        {"kind": "quarantined", "entry": by_window("w", 3, 7, incident=2).to_json()},
        {"kind": "rejected", "entry": by_ids("e", ("a", 1), rule="length", since=5).to_json()},
        {"kind": "quarantined", "entry": by_ids("f", ("b", 0), ("b", 1)).to_json()},
        {"kind": "released", "entry_id": "f", "ids": [["b", 0]], "position": 9},
        {"kind": "reflow_started", "entry_id": "w", "start": 11, "every_samples": 2}
        | {"watch_steps": 1},
        {"kind": "data_reordered", "position": 2, "seed": 5},
        {"kind": "quarantined", "entry": by_window("late", 20, 24).to_json()},
        {"kind": "released", "entry_id": "late", "ids": None, "position": 25},
        {"kind": "alarm", "alarm": {}},
    ]
    records = json.loads(json.dumps(records))

    def rebuilt(times):
        order = Order(ORDER.stages, ORDER.seed)
        ledger = Ledger(order)
        for record in records * times:
            apply_record(record, ledger, order)
        held = [ledger.holds(*order.locate(p)[1:], p) for p in range(30)]
        return ledger.to_json(), held, [order.locate(p) for p in range(30)]

    once = rebuilt(1)
    assert rebuilt(2) == rebuilt(3) == once
    assert [one["entry_id"] for one in once[0]["entries"]] == ["w", "e", "f", "late"]
    assert sum(once[1]) > 4


def test_a_sample_is_released_without_the_others():
    ledger = Ledger()
    ledger.add(by_ids("e", ("a", 1), ("a", 2)))
    assert ledger.release("e", [("a", 1)], position=10) == 1
    assert ledger.release("e", [("a", 1)], position=20) == 0
    assert [ledger.holds("a", 1, p) for p in (9, 10, 20)] == [True, False, False]
    assert ledger.held_by("e") == [("a", 2)]
    assert not ledger.was_released("e")
    with pytest.raises(StreamError, match=r"does not name .*\('a', 3\)"):
        ledger.release("e", [("a", 3)])
    assert ledger.release("e") == 1
    assert ledger.was_released("e")
    ledger.add(by_ids("e", ("a", 1), ("a", 2)))
    assert ledger.num_samples == 0


def test_a_release_holds_from_its_position_on_and_a_replay_before_it_is_exact():
    ledger = Ledger(ORDER)
    ledger.add(by_window("w", 3, 7))
    before = [ledger.holds(*ORDER.locate(p)[1:], p) for p in range(20)]
    ledger.release("w", position=20)
    assert [ledger.holds(*ORDER.locate(p)[1:], p) for p in range(20)] == before
    assert not any(ledger.holds(*ORDER.locate(p)[1:], p) for p in range(20, 30))


def test_what_was_set_aside_stays_so_where_the_order_is_changed_before_it():
    order = Order(ORDER.stages, ORDER.seed)
    ledger = Ledger(order)
    ledger.add(by_window("w", 8, 12))
    aside = ledger.samples("w")
    reorder(ledger, order, 4, seed=1)
    for position in range(30):
        key = order.locate(position)[1:]
        assert ledger.holds(*key, position) is (key in aside and position >= 4)
    assert ledger.samples("w") == aside


def test_stable_ids_are_followed_to_where_their_rows_are_now():
    rows = {"x": 4, "y": 0}
    ledger = Ledger(find=lambda key, name: (key[0], rows[name]) if name in rows else None)
    ledger.add(by_ids("e", ("a", 1), ("a", 2), ("a", 3), names=("x", "gone", "y")))
    assert ledger.samples("e") == (("a", 4), ("a", 0))
    with pytest.raises(StreamError, match="2 names for 1 ids"):
        by_ids("f", ("a", 1), names=("x", "y"))


def test_a_window_needs_an_order_and_must_fit_it():
    with pytest.raises(StreamError, match="needs an order"):
        Ledger().add(by_window("w", 0, 1))
    ledger = Ledger(ORDER)
    with pytest.raises(StreamError, match="position=30"):
        ledger.add(by_window("w", 29, 31))
    assert ledger.num_samples == 0
    assert ledger.entries == ()


@pytest.mark.parametrize("window", [(3, 3), (-1, 2), (5, 4)])
def test_empty_windows_are_refused(window):
    with pytest.raises(StreamError, match="start < stop"):
        by_window("w", *window)


def test_an_entry_names_samples_or_a_window():
    with pytest.raises(StreamError, match="give one"):
        by_ids("e")
    with pytest.raises(StreamError, match="give one"):
        by_ids("e", ("a", 1), window=(0, 1))


GOOD = by_ids("e", ("a", 1)).to_json()


@pytest.mark.parametrize(
    "record",
    [
        {},
        {**GOOD, "odd": 1},
        {**GOOD, "ids": [["a"]]},
        {**GOOD, "ids": [["a", "x"]]},
        {**GOOD, "ids": None},
        {**GOOD, "ids": [["a", True]]},
        {**GOOD, "ids": [["a", -1]]},
        {**GOOD, "ids": [[1, 1]]},
        {**GOOD, "ids": "a1"},
        {**GOOD, "since": -1},
        {**GOOD, "since": "0"},
        {**GOOD, "names": [3]},
        {**GOOD, "reason": 5},
        {**GOOD, "incident": "1"},
        {**GOOD, "rule": 5},
        {**GOOD, "ids": [], "window": ["1", 2]},
        {**GOOD, "ids": [], "window": [1, 2, 3]},
    ],
)
def test_malformed_entries_are_refused(record):
    with pytest.raises(StreamError, match="not a ledger entry"):
        LedgerEntry.from_json(record)


RELEASED = {"kind": "released", "entry_id": "e", "ids": [["a", 1]], "position": 0}
STARTED = {"kind": "reflow_started", "entry_id": "e", "start": 4, "every_samples": 1}
STARTED |= {"watch_steps": 8}
REFLOWED = {"kind": "reflowed", "entry_id": "e", "key": ["a", 1], "slot": 4, "outcome": "well"}
REFLOWED |= {"position": 9, "reason": "r", "trained_step": None, "loss": "NaN", "batch_median": 2.5}
REORDERED = {"kind": "data_reordered", "position": 3, "seed": 1}


@pytest.mark.parametrize(
    ("good", "change"),
    [
        (RELEASED, {"entry_id": "x"}),
        (RELEASED, {"entry_id": None}),
        (RELEASED, {"ids": [["a", 2]]}),
        (RELEASED, {"ids": "all"}),
        (RELEASED, {"position": -1}),
        (RELEASED, {"position": 1.5}),
        (STARTED, {"entry_id": "x"}),
        (STARTED, {"every_samples": 0}),
        (STARTED, {"start": -1}),
        (STARTED, {"watch_steps": 101}),
        (STARTED, {"watch_steps": True}),
        (REFLOWED, {"slot": 5}),
        (REFLOWED, {"key": ["a", 2]}),
        (REFLOWED, {"key": None}),
        (REFLOWED, {"outcome": "fine"}),
        (REFLOWED, {"outcome": ["well"]}),
        (REFLOWED, {"loss": "low"}),
        (REORDERED, {"position": 30}),
        (REORDERED, {"position": -1}),
        (REORDERED, {"seed": "1"}),
    ],
)
def test_malformed_records_are_refused(good, change):
    order = Order(ORDER.stages, ORDER.seed)
    ledger = Ledger(order)
    ledger.add(by_ids("e", ("a", 1)))
    ledger.start_reflow(Reflow.from_json(STARTED))
    for name in change:
        with pytest.raises(StreamError):
            apply_record({**good, name: change[name]}, ledger, order)
        if name != "loss":  # which may be missing
            with pytest.raises(StreamError):
                apply_record({k: v for k, v in good.items() if k != name}, ledger, order)
    before = ledger.to_json()
    assert before["released"] == []
    apply_record(good, ledger, order)


def test_a_window_holds_from_its_own_start_on():
    """A replay from before the window trains what trained when the window was set aside."""
    ledger = Ledger(ORDER)
    ledger.add(by_window("late", 18, 24))
    inside = {ORDER.locate(p)[1:] for p in range(18, 24)}
    for position in range(30):
        sample = ORDER.locate(position)[1:]
        assert ledger.holds(*sample, position) is (sample in inside and position >= 18)
        assert ledger.holds(*sample) is (sample in inside)
    ledger.add(by_window("early", 3, 20))
    assert all(ledger.holds(*ORDER.locate(p)[1:], p) for p in range(3, 24))
    ledger.release("early")
    earlier = [p for p in range(18) if ledger.holds(*ORDER.locate(p)[1:], p)]
    assert earlier == []
    assert all(ledger.holds(*ORDER.locate(p)[1:], p) for p in range(18, 24))


def test_named_samples_are_held_everywhere():
    ledger = Ledger(ORDER)
    ledger.add(by_ids("e", ("a", 1)))
    assert ledger.holds("a", 1, 0)
