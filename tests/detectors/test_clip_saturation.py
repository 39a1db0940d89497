"""The saturation rule by hand, and on shares that merely come near."""

import math

import numpy as np
import pytest

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.clip_saturation import ClipSaturation


def alarms_of(values, **settings) -> list[Alarm]:
    rule = ClipSaturation(**settings)
    block = np.asarray(values, np.float64)
    block = block.reshape(len(block), -1)
    names = [f"clip_share/{place}" for place in range(block.shape[1])]
    return rule.update(rule.init(names), np.arange(len(block)), block)[1]


def test_the_first_alarm_by_hand() -> None:
    # 100 of warm-up, 200 saturated: the last is step 299. One reading at 0.5 on the way costs 9.
    assert [(a.step, a.onset_step) for a in alarms_of([0.95] * 400)] == [(299, 199)]
    assert alarms_of([0.95] * 299) == []
    values = [0.95] * 400
    values[150] = 0.5
    (found,) = alarms_of(values)
    assert (found.step, found.threshold) == (309, 0.9)
    assert found.kind is AlarmKind.SATURATION
    assert alarms_of([0.899] * 400) == []
    assert [a.step for a in alarms_of([0.9] * 400)] == [299]


def test_a_stretch_is_told_once_until_it_has_ended() -> None:
    values = [0.95] * 1000 + [0.0] * 23 + [0.95] * 400
    assert [a.step for a in alarms_of(values)] == [299, 1222]
    assert len(alarms_of([0.95] * 1000 + [0.0] * 22 + [0.95] * 400)) == 1


@pytest.mark.parametrize(("saturated", "found"), [(0.5, 0), (0.85, 0), (0.97, 40), (1.0, 40)])
def test_only_nearly_every_reading_counts(saturated: float, found: int) -> None:
    """Below nine in ten the count drains faster than it fills, whatever the order."""
    rng = np.random.default_rng(1)
    share = np.where(rng.random((2000, 40)) < saturated, 0.95, 0.4)
    assert len({a.series for a in alarms_of(share)}) == found


def test_noise_about_a_healthy_share_and_a_rough_start_are_quiet() -> None:
    """Clipping that removes half of the norm, give or take; none of 80,000 readings alarms."""
    rng = np.random.default_rng(2)
    shape = (2000, 20)
    falling = np.exp(-np.arange(2000)[:, None] / 60)
    for noise in (rng.standard_normal(shape), rng.standard_t(3, shape)):
        assert alarms_of(np.clip(0.5 + 0.2 * noise, 0, 1)) == []
        assert alarms_of(np.clip(falling + 0.05 * noise, 0, 1)) == []


def test_delay_under_a_known_change() -> None:
    assert [a.step for a in alarms_of([0.1] * 1000 + [0.95] * 300)] == [1199]


def test_a_nan_is_no_reading() -> None:
    values = np.full(500, 0.95)
    values[::5] = math.nan
    assert [a.step for a in alarms_of(values)] == [374]


@pytest.mark.parametrize(
    "setting",
    [{"share": 0.0}, {"share": math.nan}, {"drain": 0}, {"warmup_readings": -1},
     {"patience_readings": 0}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"clip_saturation.*{next(iter(setting))}"):
        ClipSaturation(**setting)
