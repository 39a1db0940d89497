"""The median-ratio rule by hand, under noise, and under a known shift."""

import math

import numpy as np
import pytest

from foreshock.core.detector import AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.median_ratio import MedianRatio


def alarms_of(rule: MedianRatio, values, series=("grad_norm/global",)):
    block = np.asarray(values, np.float64)
    block = block.reshape(len(block), -1)
    return rule.update(rule.init(list(series)), np.arange(len(block)), block)[1]


def test_the_first_alarm_by_hand() -> None:
    # Medians of 1, 2, 3 | 4: 2, then 2.5 once 4 (onset: 4 = 2 x 2, not above) is taken in;
    # 12.5 = 5 x 2.5 is the limit, not above it; it joins: the median of 1, 2, 3, 4, 12.5 is 3.
    rule = MedianRatio(warmup_steps=3)
    found = alarms_of(rule, [1, 2, 3, 4, 12.5, 15.1, 1])
    assert [(a.step, a.onset_step, a.baseline, a.threshold) for a in found] == [(5, 4, 3.0, 15.0)]
    assert found[0].kind is AlarmKind.SPIKE


def test_an_onset_ends_where_the_series_is_back_in_range() -> None:
    found = alarms_of(MedianRatio(warmup_steps=3), [1, 1, 1, 3, 1, 1, 3, 3, 6])
    assert [(a.step, a.onset_step) for a in found] == [(8, 6)]


def test_a_nan_begins_an_excursion() -> None:
    found = alarms_of(MedianRatio(warmup_steps=3), [1, 1, 1, 1, math.nan, 9])
    assert [(a.step, a.onset_step) for a in found] == [(5, 4)]


@pytest.mark.parametrize("level", [0.0, -1.0])
def test_what_has_no_positive_median_cannot_be_watched_by_a_ratio(level: float) -> None:
    assert alarms_of(MedianRatio(warmup_steps=3), [level] * 5 + [1e9]) == []


def rate(values: np.ndarray) -> float:
    names = [f"grad_norm/{place}" for place in range(values.shape[1])]
    return len(alarms_of(MedianRatio(), values, names)) / values.size


def test_false_alarms_are_rare() -> None:
    """Upper bounds on the rate a step, for norms that vary by 20 %.

    Gaussian: the limit lies 20 deviations away, so none can be expected. Student t with 3
    degrees of freedom: P(T > 20) is 1.4e-4; 1.6e-4 was measured over 800,000 steps, bounded
    by twice the tail for the 200,000 here.
    """
    rng = np.random.default_rng(1)
    shape = (2500, 80)
    assert rate(1 + 0.2 * rng.standard_normal(shape)) == 0
    assert 0 < rate(1 + 0.2 * rng.standard_t(3, shape)) < 2.8e-4


@pytest.mark.parametrize(("factor", "delay"), [(3.0, None), (6.0, 0), (100.0, 0)])
def test_delay_under_a_known_shift(factor: float, delay: int | None) -> None:
    rng = np.random.default_rng(2)
    values = 1 + 0.1 * rng.standard_normal((400, 40))
    values[300:] *= factor
    names = [f"grad_norm/{place}" for place in range(40)]
    first: dict[str, int] = {}
    for alarm in alarms_of(MedianRatio(), values, names):
        first.setdefault(alarm.series, alarm.step)
    if delay is None:  # not a multiple that it is meant for, even if it lasts
        assert first == {}
    else:
        assert set(first) == set(names)
        assert np.median(list(first.values())) == 300 + delay
        assert max(first.values()) <= 302


@pytest.mark.parametrize(
    "setting",
    [
        {"warmup_steps": 0}, {"window_steps": 0}, {"rebaseline_after_steps": 0},
        {"ratio": math.nan}, {"ratio": 1.5}, {"onset_ratio": 0.0}, {"onset_ratio": 6.0},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"median_ratio.*{next(iter(setting))}"):
        MedianRatio(**setting)


def test_an_onset_lies_at_most_a_hundred_steps_back():
    rule = MedianRatio()
    values = np.ones((400, 1))
    values[160:300] = 3.0  # above the onset limit, below the alarm limit
    values[300] = 30.0
    _, (alarm,) = rule.update(rule.init(["grad_norm/global"]), np.arange(400), values)
    assert (alarm.step, alarm.onset_step) == (300, 200)
