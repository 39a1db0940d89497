"""Faults of data and of order: what exactly comes out."""

import numpy as np
import pytest

from foreshock.core.errors import ConfigError
from foreshock.faults.hard_batch import HardBatch
from foreshock.faults.other_source import OtherSource
from foreshock.faults.poor_shuffle import PoorShuffle
from foreshock.faults.random_bytes import RandomBytes
from foreshock.faults.repeated_ngrams import RepeatedNgrams
from foreshock.faults.sampler_lost import SamplerLost

TEXT = b"def the(Quick, brown): return fox  # over the lazy dog; "
LENGTH = 129


def windows(number: int) -> np.ndarray:
    return np.resize(np.frombuffer(TEXT, dtype=np.uint8), (number, LENGTH))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("fault", [RandomBytes, OtherSource, HardBatch])
def test_the_share_of_damaged_windows_is_the_intensity(fault: type) -> None:
    poisoned = fault(intensity=0.35).poison(windows(2000), rng())
    share = (poisoned != windows(2000)).any(axis=1).mean()
    assert share == pytest.approx(0.35, abs=4 * np.sqrt(0.35 * 0.65 / 2000))


def test_random_bytes_are_even() -> None:
    counts = np.bincount(RandomBytes().poison(windows(4000), rng()).ravel(), minlength=256)
    expected = counts.sum() / 256
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared == pytest.approx(255, abs=6 * np.sqrt(2 * 255))


def test_repeated_ngrams_have_a_period_and_the_bytes_of_the_window() -> None:
    clean = rng(1).integers(256, size=(300, LENGTH), dtype=np.uint8)
    poisoned = RepeatedNgrams(shortest=2, longest=5).poison(clean, rng())
    lengths = set()
    for before, after in zip(clean, poisoned, strict=True):
        period = next(p for p in range(1, LENGTH) if (after[p:] == after[:-p]).all())
        lengths.add(period)
        assert after[:period].tobytes() in before.tobytes()
    assert lengths == {2, 3, 4, 5}


def test_other_source_is_the_beginning_in_cyrillic() -> None:
    text = OtherSource().poison(windows(1), rng())[0].tobytes().decode(errors="ignore")
    assert text.startswith("где узд(Рфивк, бсоцн): сдуфсн")
    letters = [one for one in text if one.isalpha()]
    assert all("Ѐ" <= one <= "ӿ" for one in letters)
    capital = OtherSource().poison(np.frombuffer(b"Aa Zz", dtype=np.uint8)[None], rng())[0]
    assert capital.tobytes() == "Аа ".encode()


def test_a_hard_batch_is_capitals_or_a_table() -> None:
    poisoned = HardBatch().poison(windows(200), rng())
    capitals = np.frombuffer(windows(200).tobytes().upper(), dtype=np.uint8).reshape(200, -1)
    written = (poisoned == capitals).all(axis=1)
    tables = np.isin(poisoned, np.frombuffer(b"0123456789\t\n", dtype=np.uint8)).all(axis=1)
    assert (written ^ tables).all()
    assert 60 < written.sum() < 140


@pytest.mark.parametrize(("intensity", "back"), [(0.0, 0), (0.35, 35), (0.651, 66), (1.0, 100)])
def test_a_lost_sampler_goes_back_by_its_share(intensity: float, back: int) -> None:
    found = SamplerLost(intensity=intensity).reorder(100, 300, rng())
    assert found.tolist() == list(range(100 - back, 400 - back))


@pytest.mark.parametrize(("intensity", "period"), [(0.5, 253), (1.0, 64)])
def test_a_poor_shuffle_is_a_cycle(intensity: float, period: int) -> None:
    found = PoorShuffle(intensity=intensity).reorder(5000, 1000, rng())
    assert len(set(found[:period].tolist())) == period
    assert (found[period:] == found[:-period]).all()
    assert found.min() >= 5000


def test_settings_that_are_not_allowed_are_named() -> None:
    with pytest.raises(ConfigError, match="shortest is 3 and longest 2"):
        RepeatedNgrams(shortest=3, longest=2)
    with pytest.raises(ConfigError, match=r"PoorShuffle\.shortest is 0"):
        PoorShuffle(shortest=0)
