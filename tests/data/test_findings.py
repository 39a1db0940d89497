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
