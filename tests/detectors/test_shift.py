"""The shift rule by hand, under noise and trends, and under a known change of level."""

import math

import numpy as np
import pytest

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.shift import Shift


def alarms_of(values, rule: Shift | None = None) -> list[Alarm]:
    rule = rule or Shift()
    block = np.asarray(values, np.float64)
    block = block.reshape(len(block), -1)
    names = [f"loss/{place}" for place in range(block.shape[1])]
    return rule.update(rule.init(names), np.arange(len(block)), block)[1]


def test_the_first_alarm_by_hand() -> None:
    # Blocks of 1, 2, .., 8: median 4.5, quartiles 3 and 6: spread 3 / 1.349 = 2.2239; three of
    # them are 6.6716. A rise by 6.68 alarms when four blocks after it are full (step 63), one
    # by 6.66 does not; a fall likewise.
    before = [float(place % 8 + 1) for place in range(32)]
    for change, quiet in ((6.68, False), (6.66, True), (-6.68, False), (-6.66, True)):
        found = alarms_of(before + [value + change for value in before])
        assert (found == []) is quiet
        if found:
            (alarm,) = found
            assert (alarm.step, alarm.onset_step, alarm.baseline) == (63, 32, 4.5)
            assert alarm.kind is AlarmKind.SHIFT


def test_a_shift_is_told_once_and_less_than_four_blocks_are_none() -> None:
    assert len(alarms_of([1.0] * 80 + [2.0] * 400)) == 1
    assert alarms_of([1.0] * 80 + [2.0] * 24 + [1.0] * 80) == []
    assert [a.step for a in alarms_of([1.0] * 80 + [2.0] * 80 + [1.0] * 80)] == [111, 191]
    assert alarms_of([1.0] * 80 + [1.04] * 400) == [], "less than a twentieth"
    assert alarms_of([1.0] * 80 + ([2.0] * 16 + [1.0] * 8) * 10) == [], "it comes back"


def test_false_alarms_are_rare() -> None:
    """None was seen over 800,000 readings of either noise: at most two are allowed here."""
    rng = np.random.default_rng(1)
    shape = (2000, 200)
    assert len(alarms_of(3 + 0.2 * rng.standard_normal(shape))) <= 2
    assert len(alarms_of(3 + 0.2 * rng.standard_t(3, shape))) <= 2


def test_a_trend_is_no_shift() -> None:
    rng = np.random.default_rng(2)
    at = np.arange(2000)[:, None]
    for curve in (2 + 8 * np.exp(-at / 100), 2 + 8 / (1 + at / 50), 12 - at / 200, 2 + at / 50):
        assert alarms_of(curve + 0.02 * rng.standard_normal((2000, 20))) == []


@pytest.mark.parametrize("change", [0.3, -0.3])
def test_a_known_shift_is_found_in_32_to_40_readings(change: float) -> None:
    rng = np.random.default_rng(3)
    values = 2.5 + 0.02 * rng.standard_normal((400, 64))
    for column in range(64):  # wherever in a block it falls
        values[200 + column % 8 :, column] += change
    delays = {a.series: a.step - 200 - int(a.series[5:]) % 8 for a in alarms_of(values)}
    assert len(delays) == 64
    assert min(delays.values()) >= 27
    assert max(delays.values()) <= 40


def test_outliers_are_no_shift() -> None:
    rng = np.random.default_rng(4)
    values = 2.5 + 0.02 * rng.standard_normal((4000, 20))
    assert alarms_of(np.where(rng.random(values.shape) < 0.1, 4.0, values)) == []


def test_a_nan_is_no_reading() -> None:
    assert [a.step for a in alarms_of([1.0] * 32 + [math.nan] * 50 + [2.0] * 32)] == [113]


@pytest.mark.parametrize("setting", [{"z": 0.0}, {"share": math.nan}])
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"shift.*{next(iter(setting))}"):
        Shift(**setting)
