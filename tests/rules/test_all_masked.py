import numpy as np
import pytest

from foreshock.core.rule import Sample
from foreshock.data.sample import labels_of, tokens_of
from foreshock.data.stream import Stream
from foreshock.rules.all_masked import AllMasked


def sample(given):
    return Sample(tokens_of(given), None, labels_of(given))


@pytest.mark.parametrize(
    ("given", "rejected"),
    [
        ({"input_ids": [5, 6], "labels": [-100, -100]}, True),
        ({"input_ids": [5, 6], "labels": [-100, 6]}, False),
        ({"input_ids": [5, 6], "labels": [0, 0]}, False),
        # What the attention mask hides is not predicted either.
        ({"input_ids": [5, 6, 0], "labels": [-100, -100, 7], "attention_mask": [1, 1, 0]}, True),
        ({"input_ids": [5, 6, 0], "labels": [-100, 6, -100], "attention_mask": [1, 1, 0]}, False),
        ({"input_ids": [5, 6], "attention_mask": [0, 0]}, True),
        (([5, 6], [-100, -100]), True),
        (([5, 6], [-100, 7]), False),
    ],
)
def test_rejects_where_nothing_is_to_be_predicted(given, rejected):
    rule = AllMasked()
    assert rule.can_judge_sample(sample(given))
    (reason,) = rule.judge_batch([sample(given)])
    assert (reason is not None) == rejected


@pytest.mark.parametrize(
    "given",
    [
        [5, 6],
        "text",
        {"input_ids": [5, 6]},
        {"input_ids": [5, 6], "attention_mask": [1, 0]},
        {"text": "words", "labels": 3},
        ([5, 6], 3),
        ([5, 6], [1, 2, 3]),
        ("ab", "cd"),
    ],
)
def test_says_when_there_are_no_labels(given):
    assert not AllMasked().can_judge_sample(sample(given))
    assert AllMasked().judge_batch([sample(given)]) == [None]


def test_another_index_is_ignored():
    masked = Sample(None, None, np.array([0, 0]))
    assert AllMasked(ignore_index=0).judge_batch([masked]) == [
        "none of its 2 labels is to be predicted"
    ]
    assert AllMasked().judge_batch([masked]) == [None]


def test_a_stream_sets_such_samples_aside():
    data = [
        {"input_ids": np.array([n, n]), "labels": np.array([-100, -100 if n % 3 == 0 else n])}
        for n in range(12)
    ]
    stream = Stream(data, batch_size=4, seed=0, collate=list)
    stream.rules = [AllMasked()]
    seen = [one["input_ids"][0] for _ in range(2) for one in stream.next_batch().data]
    assert sorted(seen) == [n for n in range(12) if n % 3]
    with pytest.raises(StopIteration):
        stream.next_batch()
    assert {entry.ids[0][1] for entry in stream.ledger.entries} == {0, 3, 6, 9}
