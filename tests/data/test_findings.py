"""What stands out in an episode's samples: real text, a part of it broken, and text that is not."""

import numpy as np
import pytest
import torch

from foreshock.data.findings import batch_findings
from foreshock.data.stream import Stage, Stream
from foreshock.faults.crawl_shard import CrawlShard
from foreshock.lab.programs import to_text
from foreshock.lab.text import TextWindows, load_text

NUM_SAMPLES, BEFORE = 512, 320


@pytest.fixture(scope="module")
def windows():
    texts = [load_text(kind, limit_bytes=200_000, seed=0).train for kind in ("code", "english")]
    return [TextWindows(text, 64).windows[:NUM_SAMPLES].copy() for text in texts]


class _Rows(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index].astype(np.int64))


def streamed(parts):
    """A stream over sources by name, with the shares that they have from the first sample on."""
    stages = [
        Stage(name=f"s{n}", sources=rows, weights=weights, num_samples=size)
        for n, (rows, weights, size) in enumerate(parts)
    ]
    return Stream(stages, batch_size=16, seed=5, to_text=to_text)


def poisoned(windows, share, *, repetition, num_samples):
    """320 samples of code and English; then some of which a share is a broken crawl shard."""
    clean = np.concatenate([part[:BEFORE] for part in windows])
    rng = np.random.default_rng(3)
    clean = rng.permutation(clean)
    bad = clean[BEFORE : BEFORE + num_samples].copy()
    count = round(share * num_samples)
    bad[:count] = CrawlShard(intensity=1.0, repetition=repetition).poison(bad[:count], rng)
    total = BEFORE + num_samples
    rows = np.concatenate([clean[:BEFORE], bad])
    stream = streamed([({"a": _Rows(rows)}, {"a": 1.0}, total)])
    places = {stream.order.locate(place).index: place for place in range(total)}
    window = [places[index] for index in range(BEFORE, total)]
    return batch_findings(stream, window, [places[index] for index in range(BEFORE)])


@pytest.mark.parametrize("repetition", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("share", "num_samples"), [(0.5, 96), (0.8, 48), (1.0, 32)])
def test_a_part_of_the_samples_that_is_broken_stands_out(windows, share, num_samples, repetition):
    found = poisoned(windows, share, repetition=repetition, num_samples=num_samples)
    assert found
    assert all(one.strength > 0 for one in found)
    assert "of the samples, before in" in found[0].statement


def test_samples_that_are_sound_do_not(windows):
    assert poisoned(windows, 0.0, repetition=0.0, num_samples=256) == []


def test_a_mixture_that_drifts_does_not(windows):
    code, english = windows
    both = {"code": _Rows(code), "english": _Rows(english)}
    parts = [
        (both, {"code": 0.6, "english": 0.4}, 400),
        (both, {"code": 0.45, "english": 0.55}, 96),
    ]
    assert all(
        one.strength < 0 for one in batch_findings(streamed(parts), range(400, 496), range(400))
    )


def test_few_samples_that_look_as_before_say_little(windows):
    said = [poisoned(windows, 0.0, repetition=0.0, num_samples=n) for n in (2, 8, 16, 32, 64)]
    assert [len(one) for one in said] == [1] * 5
    strengths = [one[0].strength for one in said]
    assert strengths == sorted(strengths, reverse=True)
    assert strengths[0] == 0.0
    assert -2.0 < strengths[-1] < -1.5
    assert "as far as so few show: it takes 55% of them" in said[2][0].statement


def test_a_new_source_stands_out_and_too_little_past_tells_nothing(windows):
    code, english = windows
    one = {"code": _Rows(code)}
    stream = streamed(
        [(one, {"code": 1.0}, 300), ({"english": _Rows(english)}, {"english": 1.0}, 64)]
    )
    found = batch_findings(stream, range(300, 364), range(300))
    assert found
    assert "source 'english' makes up 100% of the samples" in found[0].statement
    assert batch_findings(stream, range(300, 364), range(31)) is None
    assert batch_findings(stream, [], range(300)) is None


def test_what_lies_at_the_onset_of_a_long_window_is_looked_at(windows):
    code, english = windows
    one = {"code": _Rows(np.concatenate([code, english]))}
    weights = {"code": 1.0}
    stages = [
        (one, weights, 260),
        ({"english": _Rows(english)}, {"english": 1.0}, 300),
        (one, weights, 500),
    ]
    found = batch_findings(streamed(stages), range(260, 1060), range(260))
    assert any("source 'english'" in said.statement for said in found)


class _Labelled(torch.utils.data.Dataset):
    """Random tokens `[32]`; of the samples from `first` to `stop` a share has masked labels."""

    def __init__(self, size, *, masked=(0, 0), attended=True):
        self.size, self.masked, self.attended = size, masked, attended

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        tokens = np.random.default_rng(index).integers(0, 200, 32)
        labels = tokens.copy()
        labels[:8] = -100
        if self.masked[0] <= index < self.masked[1]:
            labels[:] = -100
        return {"input_ids": tokens, "labels": labels}


def facts_of(found):
    return {one.fact for one in found if one.strength > 0}


class _Replayed:
    """A stream that gives at some positions what stood at others, under the name of its own."""

    def __init__(self, stream, instead):
        self.order, self._stream, self._instead = stream.order, stream, instead

    def sample(self, position):
        return self._stream.sample(self._instead.get(position, position))

    def text(self, position):
        return self._stream.text(self._instead.get(position, position))


def test_every_finding_names_its_fact(windows):
    found = poisoned(windows, 1.0, repetition=1.0, num_samples=64)
    assert "repetition" in facts_of(found)
    assert all(one.fact for one in found)
    assert "non_text" in facts_of(poisoned(windows, 1.0, repetition=0.0, num_samples=64))


@pytest.mark.parametrize("size", [16, 48, 400])
def test_samples_that_come_again_are_seen_by_name_or_by_what_they_hold(size):
    stream = Stream(_Labelled(5000), batch_size=16, seed=5)
    new, again = range(600, 600 + size), range(100, 100 + size)
    assert "seen_before" in facts_of(batch_findings(stream, again, range(600)))
    assert "seen_before" not in facts_of(batch_findings(stream, new, range(600)))
    recent = dict(zip(new, range(400, 400 + min(size, 200)), strict=False))
    replayed = batch_findings(_Replayed(stream, recent), new, range(600))
    assert "seen_before" in facts_of(replayed)


def test_in_a_small_data_set_samples_come_again_anyway():
    for num_samples in (300, 90):
        stage = Stage(name="s", sources={"a": _Labelled(num_samples)}, repeats=None)
        stream = Stream(stage, batch_size=16, seed=5)
        for first in (300, 333, 870):
            found = batch_findings(stream, range(first, first + 64), range(first))
            assert not facts_of(found), (num_samples, first)


def test_copies_of_each_other_are_alike():
    stream = Stream(_Labelled(5000), batch_size=16, seed=5)
    stuck = dict.fromkeys(range(600, 648), 600)
    found = batch_findings(_Replayed(stream, stuck), range(600, 648), range(600))
    assert "alike" in facts_of(found)
    assert "100% of the samples are copies of each other, where 1% would be usual" in str(found)
    few = dict.fromkeys(range(600, 606), 600)
    assert not facts_of(batch_findings(_Replayed(stream, few), range(600, 648), range(600)))


def test_one_source_alone_where_there_were_two_is_alike(windows):
    code, english = windows
    both = {"code": _Rows(code), "english": _Rows(english)}
    parts = [
        (both, {"code": 0.5, "english": 0.5}, 400),
        ({"code": both["code"]}, {"code": 1.0}, 96),
    ]
    found = batch_findings(streamed(parts), range(400, 496), range(400))
    assert "source 'code' alone makes up 100% of the samples, before 50%" in str(found)
    alone = [({"code": _Rows(code)}, {"code": 1.0}, 500)]
    assert not facts_of(batch_findings(streamed(alone), range(400, 496), range(400)))


@pytest.mark.parametrize(("share", "is_found"), [(1.0, True), (0.5, True), (0.1, False)])
def test_labels_that_are_all_masked_stand_out(share, is_found):
    masked = (600, 600 + round(share * 128))
    stream = Stream(_Labelled(1000, masked=masked), batch_size=16, seed=5)
    places = {stream.order.locate(place).index: place for place in range(1000)}
    window = [places[index] for index in range(600, 728)]
    found = batch_findings(stream, window, [places[index] for index in range(600)])
    assert ("labels_masked" in facts_of(found)) == is_found
    if is_found:
        assert f"no label is to be predicted in {share:.0%} of the samples" in str(found)
