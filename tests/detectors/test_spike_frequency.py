"""The recurrence rule by hand, at constant rates, and at rates that rise."""

import math

import numpy as np
import pytest

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.spike_frequency import SpikeFrequency


def alarms_of(values, **settings) -> list[Alarm]:
    rule = SpikeFrequency(**settings)
    block = np.asarray(values, np.float64)
    block = block.reshape(len(block), -1)
    names = [f"loss/{place}" for place in range(block.shape[1])]
    return rule.update(rule.init(names), np.arange(len(block)), block)[1]


def with_outliers(length: int, at) -> np.ndarray:
    values = 2.5 + 0.02 * np.sin(1.7 * np.arange(length))
    values[list(at)] += 1.0
    return values


def test_the_count_by_hand() -> None:
    # Two excursions in the first 1,000 readings, then one every 20 from 1600 on. At the tenth,
    # step 1780, 1781 readings have passed: 1781 - 500 - 64 = 1217 are earlier, the ratio is
    # 0.4108, and 3 * 0.4108 = 1.2325 are usual. The limit is 1.2325 + 4 * sqrt(1.2325 * 1.4108)
    # + 3 = 9.51: ten are more, and nine at step 1760 were not.
    later = range(1600, 1800, 20)
    (found,) = alarms_of(with_outliers(1800, [300, 700, *later]))
    assert found.step == 1780
    assert found.kind is AlarmKind.RECURRENCE
    assert found.value == pytest.approx(3.5, abs=0.03)
    assert alarms_of(with_outliers(1800, [300, 700, *later][:11])) == []
    assert len(alarms_of(with_outliers(2200, [300, 700, *range(1600, 2200, 20)]))) == 1
    # The 64 readings before the rule can see are none: at step 1200, 1201 - 500 - 64 = 637 are
    # earlier, 2.355 usual, 13.56 the limit, above the 13 there are; of 701 it would be 12.80.
    assert alarms_of(with_outliers(1210, [300, 600, *range(960, 1201, 20)])) == []


def test_five_that_come_ever_faster_by_hand() -> None:
    # Intervals 160, 120, 90, 67: each at most three quarters of the one before. None came in
    # the 401 readings up to the first, so 437 / 401 = 1.09 are usual in that span, below 4 / 3.
    assert [a.step for a in alarms_of(with_outliers(1200, [400, 560, 680, 770, 837]))] == [837]
    assert alarms_of(with_outliers(1200, [400, 560, 680, 770, 838])) == []
    assert alarms_of(with_outliers(1200, [400, 560, 680, 770])) == []
    assert alarms_of(with_outliers(1200, [300, 460, 580, 670, 737])) == [], "1.45 are usual"


def test_a_run_of_outliers_counts_once() -> None:
    values = with_outliers(1200, [place for at in (400, 600, 750) for place in range(at, at + 30)])
    assert alarms_of(values) == []


@pytest.mark.parametrize("rate", [0.001, 0.005, 0.02, 0.05])
def test_outliers_at_a_constant_rate_are_not_reported(rate: float) -> None:
    """20 runs of 20,000 readings: hardly one alarm in ten runs, whatever the rate."""
    rng = np.random.default_rng(1)
    values = 3 + 0.05 * rng.standard_normal((20_000, 20))
    hard = np.where(rng.random(values.shape) < rate, rng.uniform(0.5, 4, values.shape), 0.0)
    assert len(alarms_of(values + hard)) <= 2


def test_false_alarms_are_rare() -> None:
    """Gaussian noise has no outliers, Student t has 3 in 1,000 all along."""
    rng = np.random.default_rng(2)
    shape = (20_000, 20)
    assert alarms_of(3 + 0.1 * rng.standard_normal(shape)) == []
    assert len(alarms_of(3 + 0.1 * rng.standard_t(3, shape))) <= 2
    falling = 3 + 8 / (1 + np.arange(20_000)[:, None] / 100)
    assert alarms_of(falling + 0.1 * rng.standard_normal(shape)) == []


def test_a_rate_that_rises_is_found() -> None:
    """From one in 500 to one in 25: found in each of 20 runs, within 500 readings."""
    rng = np.random.default_rng(3)
    at = np.arange(4000)[:, None]
    values = 3 + 0.05 * rng.standard_normal((4000, 20))
    rate = np.where(at < 3000, 0.002, 0.04)
    values += 2.0 * (rng.random(values.shape) < rate)
    first: dict[str, int] = {}
    for alarm in alarms_of(values):
        if alarm.step >= 3000:
            first.setdefault(alarm.series, alarm.step)
    assert len(first) == 20
    assert max(first.values()) < 3500


def test_a_new_level_is_one_excursion() -> None:
    values = with_outliers(3000, [])
    values[1000:] += 1.0
    values[[1500, 1900]] += 1.0
    assert alarms_of(values) == []


def test_a_nan_is_no_reading_and_no_excursion() -> None:
    values = with_outliers(1200, [400, 560, 680, 770])
    values[837] = math.inf
    assert alarms_of(values) == []
    values = np.insert(with_outliers(1200, [400, 560, 680, 770, 837]), 500, [math.nan] * 200)
    assert [a.step for a in alarms_of(values)] == [1037]


@pytest.mark.parametrize(
    "setting",
    [{"z": 0.0}, {"floor": math.nan}, {"shrink": 1.0}, {"window_readings": 0},
     {"rebaseline_after_steps": 0}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"spike_frequency.*{next(iter(setting))}"):
        SpikeFrequency(**setting)
