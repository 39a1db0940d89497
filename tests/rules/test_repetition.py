import numpy as np
import pytest

from foreshock.core.errors import ConfigError
from foreshock.rules.repetition import Repetition

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("period", range(1, 14))
def test_rejects_every_short_period_in_128_tokens(period):
    ngram = RNG.permutation(1000)[:period]
    assert Repetition().judge(np.resize(ngram, 128), None) is not None


def test_a_longer_period_passes():
    assert Repetition().judge(np.resize(np.arange(14), 1024), None) is None


def test_the_limit_itself_passes_and_one_more_does_not():
    def with_run(length):
        return np.concatenate([np.full(length, 5), np.arange(100, 200 - length)])

    assert Repetition(max_share=0.5).judge(with_run(50), None) is None
    reason = Repetition(max_share=0.5).judge(with_run(51), None)
    assert reason == "repeated 1- to 13-grams (>= 8 copies) cover 0.51 > 0.5"


def test_fewer_copies_than_asked_for_pass():
    rule = Repetition(max_share=0, min_length=1)
    assert rule.judge(np.tile([1, 2], 7), None) is None
    assert rule.judge(np.tile([1, 2], 8), None) is not None


def test_short_samples_are_not_judged():
    assert Repetition().judge(np.zeros(95, dtype=int), None) is None
    assert Repetition().judge(np.zeros(96, dtype=int), None) is not None


def test_olmo_2s_rule_finds_one_run_in_a_long_sample():
    tokens = RNG.permutation(8192)
    rule = Repetition(max_share=0, min_repeats=32)
    assert rule.judge(tokens, None) is None
    tokens[4000 : 4000 + 13 * 32] = np.tile(np.arange(13), 32)
    assert rule.judge(tokens, None) is not None


def test_padding_is_not_repetition():
    padded = np.concatenate([np.arange(1, 11), np.zeros(500, dtype=int)])
    assert Repetition().judge(padded, None) is not None
    assert Repetition(pad_id=0).judge(padded, None) is None


def test_reads_text_where_there_are_no_tokens():
    assert Repetition().judge(None, "buy now! " * 30) is not None
    assert Repetition().judge(np.arange(100), "buy now! " * 30) is None
    assert not Repetition().can_judge(None, None)
    assert Repetition().judge(None, None) is None


def test_empty_and_tiny_samples_pass():
    assert Repetition().judge(np.array([], dtype=int), None) is None
    assert Repetition().judge(np.full(7, 1), None) is None
    assert Repetition().judge(None, "") is None


def test_rejects_under_a_thousandth_of_real_text(rejected_share):
    assert max(rejected_share(Repetition()).values()) < 0.001


@pytest.mark.parametrize(
    "limit", [{"max_share": 1.0}, {"max_share": -0.1}, {"min_repeats": 1}, {"max_period": 0}]
)
def test_refuses_limits_outside_the_range(limit):
    with pytest.raises(ConfigError, match=next(iter(limit))):
        Repetition(**limit)
