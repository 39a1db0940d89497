"""A batch judged at once is judged as one by one, and limits are learned alike everywhere."""

import numpy as np
import pytest

from foreshock.catalog import members
from foreshock.core.repetition import repeated_share, repeated_shares
from foreshock.core.rule import LEARNED_FROM, Sample, learned_share
from foreshock.core.text import non_text_share, non_text_shares
from foreshock.data.judging import Judging
from foreshock.data.sample import text_in
from foreshock.data.stream import Stage, Stream
from foreshock.rules.length import Length
from foreshock.rules.non_text_share import NonTextShare
from foreshock.rules.repetition import Repetition
from foreshock.rules.replacement_share import ReplacementShare

ALPHABET = "ab \n\x00\x7f\x85é世Ã©â€™\ufffd\ud800\ufdd0\U000f0000"


def random_sample(rng):
    length = int(rng.choice([0, 1, 3, 96, 128, 128, 200]))
    kind = rng.integers(4)
    if kind == 0:
        tokens = rng.integers(0, 3, length)
    elif kind == 1:
        tokens = np.resize(rng.integers(0, 300, max(1, int(rng.integers(1, 16)))), length)
        noisy = rng.random(length) < rng.choice([0, 0.02])
        tokens = np.where(noisy, rng.integers(0, 300, length), tokens)
    else:
        tokens = rng.integers(0, 300, length)
    text = None
    if rng.random() < 0.5:
        text = "".join(rng.choice(list(ALPHABET), length, p=None))
    given = tokens.astype(rng.choice([np.int64, np.uint16])) if rng.random() < 0.8 else None
    labels = None if rng.random() < 0.5 else np.where(rng.random(length) < 0.5, -100, tokens)
    return Sample(given, text, labels)


RULES = [
    *(kind() for kind in members("rules").values()),
    Repetition(max_share=0.3, min_length=3, min_repeats=3, pad_id=1),
    Repetition(max_share=0.0, min_repeats=2, min_length=1),
    NonTextShare(tokens_are_bytes=True),
    NonTextShare(max_share=0.4, tokens_are_bytes=True),
    ReplacementShare(unk_id=2, tokens_are_bytes=True),
    Length(min_length=4, max_length=100, pad_id=0),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("seed", range(5))
def test_a_batch_is_judged_as_its_samples_are_one_by_one(rule, seed):
    rng = np.random.default_rng(seed)
    samples = [random_sample(rng) for _ in range(40)]
    one_by_one = [rule.judge_batch([one])[0] for one in samples]
    assert rule.judge_batch(samples) == one_by_one
    assert rule.judge_batch([]) == []
    if type(rule).__name__ != "AllMasked":
        assert one_by_one == [rule.judge(one.tokens, one.text) for one in samples]


@pytest.mark.parametrize("seed", range(100))
def test_repetition_of_many_is_that_of_each(seed):
    rng = np.random.default_rng(seed)

    def sequence():
        pattern = rng.integers(-2, 2, rng.integers(1, 16))
        tokens = np.resize(pattern, rng.integers(0, 90))
        tokens = np.where(rng.random(len(tokens)) < rng.choice([0, 0.05]), 9, tokens)
        return tokens.astype(rng.choice([np.int64, np.int8]))

    sequences = [sequence() for _ in range(rng.integers(1, 12))]
    limits = {"min_repeats": int(rng.integers(2, 9)), "max_period": int(rng.integers(1, 14))}
    assert repeated_shares(sequences, **limits).tolist() == [
        repeated_share(one, **limits) for one in sequences
    ]


def test_repetition_does_not_run_on_into_the_next_sample():
    half = np.full(64, 7)
    assert repeated_shares([half[:4], half[:4]], min_repeats=8).tolist() == [0, 0]
    assert repeated_shares([half[:4], half[:0], half[:4]], min_repeats=4).tolist() == [1, 0, 1]
    assert repeated_shares([], min_repeats=4).tolist() == []


def test_shares_of_texts_are_those_of_each():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list(ALPHABET), n)) for n in rng.integers(0, 30, 300)]
    assert non_text_shares(texts).tolist() == [non_text_share(text) for text in texts]
    assert non_text_shares([]).tolist() == []


# ---- learning -------------------------------------------------------------------------


def test_a_clean_stream_leaves_the_documented_limit():
    samples = [Sample(None, "plain text, and more of it" * 5) for _ in range(100)]
    for rule in (NonTextShare(), ReplacementShare(), Repetition()):
        assert rule.learned(samples).max_share >= {"non_text_share": 0.1}.get(rule.name, 0.05)
    assert NonTextShare().learned(samples).max_share == 0.1
    assert ReplacementShare().learned(samples).max_share == 0.05


def test_a_stream_of_another_kind_is_not_rejected_for_it():
    rng = np.random.default_rng(0)
    shares = rng.uniform(0.1, 0.3, 200)  # terminal logs, say
    samples = [Sample(None, "\x1b" * int(100 * s) + "a" * (100 - int(100 * s))) for s in shares]
    rule = NonTextShare()
    assert sum(one is not None for one in rule.judge_batch(samples)) > 150
    learned = rule.learned(samples)
    assert rule.max_share is None
    assert 0.3 < learned.max_share < 0.5
    assert learned.judge_batch(samples) == [None] * 200
    assert learned.judge(None, "\x1b" * 60 + "a" * 40) is not None


def test_a_few_bad_samples_among_the_first_do_not_move_it():
    samples = [Sample(None, "fine") for _ in range(248)] + [Sample(None, "\x00" * 9)] * 8
    assert NonTextShare().learned(samples).max_share == 0.1


def test_what_was_given_is_not_learned():
    samples = [Sample(None, "\x00" * 9)] * 100
    assert NonTextShare(max_share=0.2).learned(samples) == NonTextShare(max_share=0.2)


@pytest.mark.parametrize("num", [0, 1, 63])
def test_of_few_samples_nothing_is_learned(num):
    assert learned_share([0.9] * num, usual=0.1) == 0.1
    assert learned_share([0.9] * 64, usual=0.1) == 0.9


def logs(num, seed):
    rng = np.random.default_rng(seed)
    return ["\x1b" * n + "a" * (100 - n) for n in rng.integers(10, 30, num).tolist()]


def stages():
    return [
        Stage(name="one", sources={"logs": logs(400, 0)}),
        Stage(name="two", sources={"broken": ["\x00" * 100] * 40, "more": logs(200, 1)}),
    ]


def test_every_rank_batch_size_and_resume_learns_the_same_and_admits_the_same():
    def seen(*, world_size=1, batch_size=20, start=0, rank=0, reorder=False):
        stream = Stream(
            stages(), batch_size=batch_size, seed=3, collate=list, rank=rank, world_size=world_size
        )
        stream.rules = (NonTextShare(),)
        if reorder:
            stream.reorder_from(0, 77)
        stream.load_state_dict({"position": start})
        ids = []
        while True:
            try:
                ids += stream.next_batch().ids
            except StopIteration:
                return ids, sorted(entry.ids[0] for entry in stream.ledger.entries)

    whole, refused = seen()
    assert len(whole) == 600
    assert {source for source, _ in refused} == {"broken"}
    assert seen(batch_size=10) == (whole, refused)
    assert seen(world_size=2, rank=1) == (whole, refused)
    at = 300
    assert seen(start=at)[0] == whole[at:]
    assert seen(reorder=True)[1] == refused


def test_what_is_learned_does_not_change_with_the_order_of_the_data():
    def limit(*, reorder):
        stream = Stream(logs(3000, 5), batch_size=4, seed=0, collate=list)
        if reorder:
            stream.reorder_from(0, 77)
        load = stream._sources.load_many
        (rule,) = Judging((NonTextShare(),), stream.order, load, lambda one: one).rules
        return rule.max_share, stream.order.locate(0)

    (first, at_first), (second, at_second) = limit(reorder=False), limit(reorder=True)
    assert at_first != at_second
    assert first == second > 0.1


def test_what_a_rule_cannot_judge_leaves_the_others_theirs():
    samples = [0.5, "\x00" * 9, 0.5, "fine", {"text": "\x00"}, {"text": "fine", "labels": [1]}]
    stream = Stream(list(samples), batch_size=1, seed=0)
    judging = Judging((NonTextShare(max_share=0.1), Length()), stream.order, list, text_in)
    said = [
        [(one.reason is not None, one.is_judged) for one in row] for row in judging.judge(samples)
    ]
    assert said == [
        [(False, False), (False, False)],
        [(True, True), (False, True)],
        [(False, False), (False, False)],
        [(False, True), (False, True)],
        [(True, True), (True, True)],
        [(False, True), (False, True)],
    ]


def test_learning_reads_the_first_samples_once():
    read = []

    class Counted(list):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    stream = Stream(Counted(logs(1000, 0)), batch_size=4, seed=0, collate=list)
    stream.rules = (NonTextShare(), ReplacementShare())
    stream.next_batch()
    assert len(read) == LEARNED_FROM + 4
    stream.next_batch()
    assert len(read) == LEARNED_FROM + 8
    stream.rules = (Length(),)
    stream.next_batch()
    assert len(read) == LEARNED_FROM + 12


def test_a_sample_that_cannot_be_read_is_left_out_of_learning():
    class Broken(list):
        def __getitem__(self, index):
            if index == 7:
                raise ValueError("rotten")
            return super().__getitem__(index)

    stream = Stream(Broken(logs(100, 0)), batch_size=1, seed=0)
    judging = Judging((NonTextShare(),), stream.order, stream._sources.load_many, lambda one: one)
    (rule,) = judging.rules
    assert rule.max_share > 0.25
