import numpy as np
import pytest

from foreshock.core.errors import ConfigError
from foreshock.rules.length import Length


@pytest.mark.parametrize(
    ("length", "reason"),
    [(0, "length 0 < 2"), (1, "length 1 < 2"), (2, None), (5, None), (6, "length 6 > 5")],
)
def test_both_limits_are_inclusive(length, reason):
    assert Length(max_length=5).judge(np.arange(length), None) == reason
    assert Length(max_length=5).judge(None, "x" * length) == reason


def test_there_is_no_upper_limit_by_default():
    assert Length().judge(np.zeros(10**6), None) is None


def test_padding_does_not_count():
    padded = np.array([7, 0, 0, 0])
    assert Length().judge(padded, None) is None
    assert Length(pad_id=0).judge(padded, None) == "length 1 < 2"


def test_tokens_go_before_text():
    assert Length(max_length=3).judge(np.arange(3), "a longer text") is None


def test_says_when_it_cannot_judge():
    assert not Length().can_judge(None, None)
    assert Length().judge(None, None) is None
    assert Length().can_judge(None, "")


@pytest.mark.parametrize("limit", [{"min_length": 0}, {"max_length": 1}])
def test_refuses_limits_outside_the_range(limit):
    with pytest.raises(ConfigError, match=next(iter(limit))):
        Length(**limit)
