import numpy as np
import pytest

from foreshock.core.errors import ConfigError
from foreshock.core.text import non_text_share
from foreshock.rules.non_text_share import NonTextShare


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("plain text\twith\r\nwhite\fspace", 0),
        ("a\x00\x1b\x7f", 3 / 4),
        ("abc\x85", 1 / 4),
        ("\ue000\ufdd0\ufffeabcde", 3 / 8),
        ("a\ud800bc", 1 / 4),
        ("\U0010ffff\U000f0000ab", 2 / 4),
        ("añ Ünïted", 0),
        ("Ã©ab", 2 / 4),
        ("â€™", 1),
        ("Ã\x80ab", 2 / 4),  # the C1 control inside mojibake counts once
        ("", 0),
    ],
)
def test_shares_computed_by_hand(text, share):
    assert non_text_share(text) == pytest.approx(share)


@pytest.mark.parametrize("wrong", ["latin-1", "cp1252"])
@pytest.mark.parametrize("text", ["привет, как дела у вас", "世界你好吗今天", "日本語のテキスト"])
def test_rejects_mojibake(text, wrong):
    broken = text.encode().decode(wrong, errors="replace")
    assert NonTextShare().judge(None, broken) is not None
    assert NonTextShare().judge(None, text) is None


def test_rejects_random_bytes():
    rng = np.random.default_rng(0)
    rule = NonTextShare(tokens_are_bytes=True)
    rejected = [rule.judge(rng.integers(0, 256, 128), None) is not None for _ in range(200)]
    assert all(rejected)


def test_says_the_share_and_the_limit():
    assert NonTextShare(max_share=0.25).judge(None, "a\x00\x00b") == "non-text share 0.5 > 0.25"
    assert NonTextShare(max_share=0.5).judge(None, "a\x00\x00b") is None


def test_says_when_it_cannot_judge():
    tokens = np.zeros(9, dtype=np.int64)
    assert not NonTextShare().can_judge(tokens, None)
    assert NonTextShare().judge(tokens, None) is None
    assert NonTextShare(tokens_are_bytes=True).judge(tokens, None) is not None
    assert NonTextShare().can_judge(None, "")


def test_rejects_no_real_text(rejected_share):
    assert max(rejected_share(NonTextShare(tokens_are_bytes=True)).values()) == 0


@pytest.mark.parametrize("max_share", [-0.1, 1.0])
def test_refuses_limits_outside_the_range(max_share):
    with pytest.raises(ConfigError, match="max_share"):
        NonTextShare(max_share=max_share)
