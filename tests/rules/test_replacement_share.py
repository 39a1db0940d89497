import numpy as np
import pytest

from foreshock.core.errors import ConfigError
from foreshock.rules.replacement_share import ReplacementShare


def test_the_limit_itself_passes_and_one_more_does_not():
    rule = ReplacementShare()
    assert rule.judge(None, "ab" + 5 * "\ufffd" + 93 * "c") is None
    reason = rule.judge(None, "abcd" + 6 * "\ufffd" + 90 * "c")
    assert reason == "U+FFFD share 0.06 > 0.05"


def test_counts_unk_tokens():
    rule = ReplacementShare(unk_id=3)
    assert rule.judge(np.array([3] + [7] * 19), None) is None
    assert rule.judge(np.array([3, 3] + [7] * 18), None) == "UNK share 0.1 > 0.05"


def test_unk_is_found_even_where_the_text_is_clean():
    assert ReplacementShare(unk_id=3).judge(np.array([3, 3]), "clean") is not None


def test_reads_the_bytes_of_a_byte_level_model():
    latin = "Ein schöner Tag für süße Äpfel und Öl".encode("latin-1")
    tokens = np.frombuffer(latin, np.uint8).astype(np.int64)
    assert ReplacementShare(tokens_are_bytes=True).judge(tokens, None) is not None
    assert ReplacementShare().judge(tokens, None) is None


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("stop", range(40, 44))
def test_a_window_cut_inside_a_character_is_clean(start, stop):
    window = ("😀世é" * 9).encode()[start:stop]
    rule = ReplacementShare(max_share=0, tokens_are_bytes=True)
    assert rule.judge(np.frombuffer(window, np.uint8), None) is None


def test_says_when_it_cannot_judge():
    tokens = np.array([0, 0])
    assert not ReplacementShare().can_judge(tokens, None)
    assert ReplacementShare().judge(tokens, None) is None
    assert ReplacementShare(unk_id=0).can_judge(tokens, None)
    assert ReplacementShare(tokens_are_bytes=True).can_judge(tokens, None)
    assert ReplacementShare().can_judge(None, "text")
    assert not ReplacementShare(unk_id=0, tokens_are_bytes=True).can_judge(None, None)


def test_empty_samples_pass():
    assert ReplacementShare(unk_id=0).judge(np.array([], dtype=np.int64), "") is None


def test_rejects_no_real_text(rejected_share):
    assert max(rejected_share(ReplacementShare(tokens_are_bytes=True)).values()) == 0


@pytest.mark.parametrize("max_share", [-0.1, 1.0, float("nan")])
def test_refuses_limits_outside_the_range(max_share):
    with pytest.raises(ConfigError, match="max_share"):
        ReplacementShare(max_share=max_share)
