"""CrawlShard: how much it damages, and what the damage looks like."""

import numpy as np
import pytest
from numpy.typing import NDArray

from foreshock.core.errors import ConfigError
from foreshock.faults import crawl_shard
from foreshock.faults.crawl_shard import CrawlShard

LENGTH = 129


def clean_windows(num_windows: int) -> NDArray[np.uint8]:
    text = b"It was the best of times, it was the worst of times. "
    window = np.resize(np.frombuffer(text, dtype=np.uint8), LENGTH)
    return np.tile(window, (num_windows, 1))


def smallest_period(window: bytes) -> int:
    return next(n for n in range(1, len(window) + 1) if window[n:] == window[:-n])


@pytest.mark.parametrize("intensity", [0.0, 0.25, 1.0])
def test_intensity_is_the_share_of_damaged_windows(intensity: float) -> None:
    clean = clean_windows(2000)
    poisoned = CrawlShard(intensity=intensity).poison(clean, np.random.default_rng(0))
    damaged = (poisoned != clean).any(axis=1)
    three_sigma = 3 * (intensity * (1 - intensity) / 2000) ** 0.5
    assert abs(damaged.mean() - intensity) <= three_sigma


def test_repetition_is_periodic_or_boilerplate_in_printable_bytes() -> None:
    shard = CrawlShard(repetition=1.0, num_sites=1)
    poisoned = shard.poison(clean_windows(200), np.random.default_rng(0))
    assert ((poisoned >= 0x20) & (poisoned < 0x7F)).all()
    periods = [smallest_period(row.tobytes()) for row in poisoned]
    navigation = [b"<li><a href=" in row.tobytes() for row in poisoned]
    assert all(period <= 13 or nav for period, nav in zip(periods, navigation, strict=True))
    assert 60 < sum(navigation) < 140
    assert {1, 13} <= set(periods)


def test_sites_bound_the_number_of_templates() -> None:
    def words(num_sites: int) -> set[bytes]:
        shard = CrawlShard(repetition=1.0, num_sites=num_sites)
        rows = shard.poison(clean_windows(300), np.random.default_rng(0))
        return {part for row in rows for part in row.tobytes().split(b'"') if part[:1] == b"/"}

    pages_of_one = {part.partition(b"?")[0] for part in words(1)}
    pages_of_many = {part.partition(b"?")[0] for part in words(50)}
    full = {f"/{word}".encode() for word in crawl_shard.WORDS}
    assert len(pages_of_one & full) == 6
    assert pages_of_many >= full


def test_misdecoding_leaves_the_three_marks() -> None:
    shard = CrawlShard(repetition=0.0)
    rows = [row.tobytes() for row in shard.poison(clean_windows(300), np.random.default_rng(0))]
    replaced = [row for row in rows if row.count(b"\xef\xbf\xbd") >= 5]
    image = [row for row in rows if row.count(b"\0") + row.count(b"\xff") >= 5]
    mojibake = [row for row in rows if row not in replaced and row not in image]
    assert min(len(replaced), len(image), len(mojibake)) > 60
    for row in mojibake:
        once = row.decode("utf-8", "ignore").encode("latin-1")  # a cut character is dropped
        twice = once.decode("utf-8", "ignore").encode("latin-1").decode("utf-8", "ignore")
        assert max(map(ord, twice)) > 0xFF, "undone twice, it is text of another script"


def test_replacement_keeps_some_of_the_clean_text() -> None:
    shard = CrawlShard(repetition=0.0)
    rows = [row.tobytes() for row in shard.poison(clean_windows(300), np.random.default_rng(0))]
    replaced = [row.replace(b"\xef\xbf\xbd", b"") for row in rows if row.count(b"\xef\xbf\xbd") > 4]
    kept = [row.rstrip(b"\xef\xbf") for row in replaced]
    assert all(clean_windows(1)[0].tobytes().startswith(row) for row in kept)
    assert max(map(len, kept)) > 10


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"intensity": 1.5}, "intensity is 1.5"),
        ({"repetition": -0.1}, "repetition is -0.1"),
        ({"intensity": float("nan")}, "intensity is nan"),
        ({"num_sites": 0}, "num_sites is 0"),
    ],
)
def test_a_setting_out_of_range_is_named(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        CrawlShard(**settings)  # pyright: ignore[reportArgumentType]
