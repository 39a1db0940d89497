import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.repetition import repeated_share
from foreshock.data.statistics import SampleFacts, compare, sample_facts


def test_facts_of_a_hand_computed_sample():
    facts = sample_facts(np.array([1, 1, 1, 1, 2, 3, 4, 5]))
    assert facts == SampleFacts(
        length=8, unique_share=5 / 8, entropy_bits=2.0, repeated_ngram_share=0.5
    )


def test_facts_of_an_empty_sample():
    assert sample_facts(np.array([], dtype=np.int64), text="") == SampleFacts(
        length=0,
        unique_share=0.0,
        entropy_bits=0.0,
        repeated_ngram_share=0.0,
        replacement_share=0.0,
        high_byte_share=0.0,
        non_text_share=0.0,
    )


def test_text_facts_come_from_bytes_or_text_and_agree():
    raw = "é\x00ab".encode()
    from_bytes = sample_facts(np.frombuffer(raw, np.uint8), tokens_are_bytes=True)
    from_text = sample_facts(np.frombuffer(raw, np.uint8), text="é\x00ab")
    assert from_bytes == from_text
    assert from_bytes.high_byte_share == 2 / 5
    assert from_bytes.non_text_share == 1 / 4


def test_the_unk_share_goes_before_the_character_share():
    assert sample_facts(np.array([0, 7, 7, 0]), text="abcd", unk_id=0).replacement_share == 0.5


@given(
    tokens=st.lists(st.integers(0, 2), max_size=40),
    min_repeats=st.integers(2, 5),
    max_period=st.integers(1, 6),
)
def test_the_repeated_share_is_the_slow_definition(tokens, min_repeats, max_period):
    covered = set()
    for period in range(1, max_period + 1):
        size = period * min_repeats
        for start in range(len(tokens) - size + 1):
            window = tokens[start : start + size]
            if window == window[:period] * min_repeats:
                covered |= set(range(start, start + size))
                # A partial further copy belongs to the stretch.
                stop = start + size
                while stop < len(tokens) and tokens[stop] == tokens[stop - period]:
                    covered.add(stop)
                    stop += 1
    expected = len(covered) / len(tokens) if tokens else 0.0
    found = repeated_share(np.array(tokens), min_repeats=min_repeats, max_period=max_period)
    assert found == pytest.approx(expected)


def healthy(num, seed=0):
    rng = np.random.default_rng(seed)
    return [sample_facts(rng.integers(0, 50, 200)) for _ in range(num)]


def lengths(*values):
    return [
        SampleFacts(length=v, unique_share=1, entropy_bits=1, repeated_ngram_share=0)
        for v in values
    ]


def test_a_repetitive_window_stands_out():
    stuck = [sample_facts(np.tile([n, 7, 8, 9], 50)) for n in range(30)]
    shifts = {s.fact: s for s in compare(stuck, healthy(30))}
    repeated = shifts["repeated_ngram_share"]
    assert (repeated.above, repeated.value, repeated.moved_share) == (True, 1.0, 1.0)
    assert repeated.p_value == pytest.approx(np.exp(-30))
    assert (shifts["unique_share"].above, shifts["unique_share"].moved_share) == (False, 1.0)
    assert shifts["length"].moved_share == 0.0
    assert shifts["length"].p_value == 1.0


def test_a_part_that_moved_is_seen_where_the_median_did_not():
    part = [sample_facts(np.tile([n, 7, 8, 9], 50)) for n in range(40)] + healthy(60, seed=1)
    shifts = {s.fact: s for s in compare(part, healthy(256))}
    assert shifts["repeated_ngram_share"].window_share == 0.4
    assert shifts["repeated_ngram_share"].reference_share == 0.0
    assert shifts["repeated_ngram_share"].p_value < 1e-4


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=20),
    st.lists(st.integers(0, 12), min_size=1, max_size=20),
)
def test_the_distance_is_the_slow_one(ours, theirs):
    (shift,) = (s for s in compare(lengths(*ours), lengths(*theirs)) if s.fact == "length")

    def share(values, limit, up):
        return sum(v >= limit if up else v <= limit for v in values) / len(values)

    up = max(share(ours, t, True) - share(theirs, t - 1, True) for t in ours)
    down = max(share(ours, t, False) - share(theirs, t + 1, False) for t in ours)
    assert shift.moved_share == pytest.approx(max(up, down))
    assert shift.above == (up >= down)
    assert share(ours, shift.value, shift.above) == pytest.approx(shift.window_share)


def test_equal_groups_rarely_differ():
    """Of 300 pairs, one in a thousand may show a p-value of 1e-3 over 14, and none shows less."""
    lowest = [
        min(shift.p_value for shift in compare(healthy(64, seed=n), healthy(100, seed=1000 + n)))
        for n in range(300)
    ]
    assert min(lowest) > 1e-3 / 14
    assert np.mean(np.array(lowest) < 0.05 / 14) < 0.05


def test_too_little_data_gives_no_evidence():
    assert compare([], healthy(20)) == []
    assert compare(healthy(3), []) == []
    (one, *_) = compare(lengths(5), lengths(9))
    assert one.p_value > 0.3


def test_facts_that_one_side_does_not_know_are_left_out():
    with_text = [sample_facts(np.arange(9), text="some text") for _ in range(9)]
    known = {s.fact for s in compare(healthy(2), with_text)}
    assert "non_text_share" not in known
    assert "length" in known
