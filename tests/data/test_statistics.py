import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.repetition import repeated_share
from foreshock.data.statistics import MIN_REFERENCE, SampleFacts, compare, sample_facts


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


def test_a_repetitive_window_stands_out_first():
    stuck = [sample_facts(np.tile([n, 7, 8, 9], 50)) for n in range(3)]
    shifts = {s.fact: s for s in compare(stuck, healthy(30))}
    assert shifts["repeated_ngram_share"].window_median == 1.0
    assert shifts["repeated_ngram_share"].robust_z > 20
    assert shifts["repeated_ngram_share"].outside_share == 1.0
    assert shifts["unique_share"].robust_z < -3
    assert shifts["length"].robust_z == 0.0
    assert next(iter(shifts)) in ("repeated_ngram_share", "entropy_bits")


def test_equal_groups_do_not_differ():
    for shift in compare(healthy(100), healthy(100, seed=1)):
        assert abs(shift.robust_z) < 1
        assert shift.outside_share < 0.2


def test_z_is_in_robust_deviations_and_floored():
    def lengths(*values):
        return [
            SampleFacts(length=v, unique_share=1, entropy_bits=1, repeated_ngram_share=0)
            for v in values
        ]

    spread = compare(lengths(30), lengths(2, 4, 6, 8, 12, 14, 16, 18))
    # Median 10, deviations 8 6 4 2 2 4 6 8, MAD 5.
    assert {s.fact: s for s in spread}["length"].robust_z == pytest.approx(20 / (1.4826 * 5))
    constant = compare(lengths(13), lengths(*[10] * 8))
    assert {s.fact: s for s in constant}["length"].robust_z == 3.0


def test_too_little_data_gives_no_evidence():
    assert compare([], healthy(20)) == []
    assert compare(healthy(3), healthy(MIN_REFERENCE - 1)) == []
    assert compare(healthy(1), healthy(MIN_REFERENCE)) != []


def test_facts_that_one_side_does_not_know_are_left_out():
    with_text = [sample_facts(np.arange(9), text="some text") for _ in range(9)]
    known = {s.fact for s in compare(healthy(2), with_text)}
    assert "non_text_share" not in known
    assert "length" in known
