import json

import pytest

from foreshock.core.errors import StreamError
from foreshock.data.ledger import Ledger, LedgerEntry
from foreshock.data.order import Order, SourceShare, StageOrder

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


def test_survives_json_with_entries_and_releases():
    ledger = Ledger(ORDER)
    ledger.add(by_window("w", 3, 7, incident=2))
    ledger.add(by_ids("e", ("a", 1), rule="length"))
    ledger.add(by_ids("f", ("b", 0)))
    ledger.release("f")
    copy = Ledger.from_json(json.loads(json.dumps(ledger.to_json())), ORDER)
    assert copy.entries == ledger.entries
    assert copy.was_released("f")
    assert copy.num_samples == ledger.num_samples


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
        {**GOOD, "ids": [], "window": [1, 2, 3]},
    ],
)
def test_malformed_entries_are_refused(record):
    with pytest.raises(StreamError, match="not a ledger entry"):
        LedgerEntry.from_json(record)


@pytest.mark.parametrize("record", [{}, {"entries": []}, {"entries": None, "released": []}])
def test_malformed_ledgers_are_refused(record):
    with pytest.raises(StreamError, match="not a ledger"):
        Ledger.from_json(record)


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
