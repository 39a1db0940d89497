"""The spike rule by hand, under noise, and under a known shift."""

import math

import numpy as np
import pytest

from foreshock.core.errors import ConfigError
from foreshock.detectors.spike import Spike


def alarms_of(rule: Spike, values, series=("loss/global",)):
    block = np.asarray(values, np.float64)
    block = block.reshape(len(block), -1)
    return rule.update(rule.init(list(series)), np.arange(len(block)), block)[1]


def test_the_first_alarm_by_hand() -> None:
    # Warm-up 1, 2, 1, 2, 3. Residuals to the median before: 1 (2-1), -0.5 (1-1.5), 1 (2-1),
    # 1.5 (3-1.5): their median is 1, their deviations 0, 0, 0.5, 1.5: MAD 0.25. The level is
    # the median of 1, 1, 2, 2, 3: 2. Limit 2 + 1 + 6 * 1.4826 * 0.25 = 5.2239.
    rule = Spike(warmup_steps=5, floor=0.0)
    limit = 3 + 6 * 1.4826 * 0.25
    (found,) = alarms_of(rule, [1, 2, 1, 2, 3, limit + 1e-9])
    assert (found.step, found.baseline) == (5, 3.0)
    assert found.threshold == pytest.approx(limit)
    assert alarms_of(rule, [1, 2, 1, 2, 3, limit - 1e-9]) == []


def test_the_floor_is_a_share_of_the_level() -> None:
    rule = Spike(warmup_steps=3)
    assert alarms_of(rule, [4.0, 4.0, 4.0, 4.0, 4.23]) == []
    assert [a.step for a in alarms_of(rule, [4.0, 4.0, 4.0, 4.0, 4.25])] == [4]


def test_a_falling_loss_does_not_hide_a_spike() -> None:
    rng = np.random.default_rng(0)
    falling = 10 - 0.02 * np.arange(200) + 0.02 * rng.standard_normal(200)
    falling[120] += 0.9
    assert [a.step for a in alarms_of(Spike(), falling)] == [120]


def test_an_onset_is_where_the_softer_limit_was_passed() -> None:
    values = [4.0] * 8 + [4.15, 4.16, 4.9]
    (found,) = alarms_of(Spike(warmup_steps=3), values)
    assert (found.step, found.onset_step) == (10, 8)


def rate(values: np.ndarray) -> float:
    names = [f"loss/{place}" for place in range(values.shape[1])]
    return len(alarms_of(Spike(), values, names)) / values.size


def test_false_alarms_are_rare() -> None:
    """Upper bounds on the rate a step, for a loss of 3 with a spread of 0.1.

    Gaussian: P(z > 6) is 1e-9 and a MAD of 19 to 128 residuals is uncertain by 26 to 10 %;
    two were measured in 800,000 steps, early ones: at most one is allowed here.
    Student t with 3 degrees of freedom: the tail beyond 6 * 1.4826 * 0.765 = 6.8 is 3.2e-3;
    3.1e-3 was measured over 800,000 steps, early ones included, bounded by one and a half times.
    """
    rng = np.random.default_rng(1)
    shape = (1000, 60)
    assert rate(3 + 0.1 * rng.standard_normal(shape)) <= 1 / 60_000
    assert 1e-3 < rate(3 + 0.1 * rng.standard_t(3, shape)) < 4.7e-3


@pytest.mark.parametrize(("size", "seen"), [(0.3, 0.1), (1.0, 0.97)])
def test_delay_under_a_known_shift(size: float, seen: float) -> None:
    """A shift of ten deviations is seen at once; of three, hardly ever: it is no spike."""
    rng = np.random.default_rng(2)
    values = 3 + 0.1 * rng.standard_normal((320, 60))
    values[300:] += size
    names = [f"loss/{place}" for place in range(60)]
    at_once = {a.series for a in alarms_of(Spike(), values, names) if a.step == 300}
    if size == 1.0:
        assert len(at_once) >= seen * 60
    else:
        assert len(at_once) <= seen * 60


@pytest.mark.parametrize("size", [1.7e308, -1.7e308])
def test_values_at_the_edge_of_float64_end_nothing(size: float) -> None:
    values = [1.0, -1.7e308, 1.7e308, size, 1.0] * 10
    alarms_of(Spike(), values)
    assert alarms_of(Spike(warmup_steps=1), [1.0, 2.0]) == []


@pytest.mark.parametrize(
    "setting",
    [
        {"warmup_steps": 0}, {"window_steps": 0}, {"spread_steps": 0},
        {"rebaseline_after_steps": 0}, {"z": math.nan}, {"z": 2.0}, {"onset_z": 0.0},
        {"onset_z": 7.0}, {"floor": -0.1}, {"floor": math.nan},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"spike.*{next(iter(setting))}"):
        Spike(**setting)


def test_a_series_that_is_always_zero_cannot_be_judged() -> None:
    rule = Spike()
    values = np.zeros((60, 1))
    values[50] = math.pi * 1e-3
    state, alarms = rule.update(rule.init(["loss/global"]), np.arange(60), values)
    assert alarms == []
    assert rule.thresholds(state)[0].limit == math.inf


def limit_after(values) -> float:
    state, _ = Spike().update(
        Spike().init(["loss/global"]), np.arange(len(values)), np.asarray(values)[:, None]
    )
    return Spike().thresholds(state)[0].limit


def test_a_printed_unit_is_not_mistaken_for_noise_of_zero() -> None:
    # All but a few print 0.02; the MAD is 0, and 6 % of 0.02 would make each 0.03 a spike.
    # Half a unit of MAD: 0.02 + 6 * 1.4826 * 0.005 = 0.0645.
    printed = [0.02] * 60 + [0.03, 0.02, 0.01] + [0.02] * 60
    assert limit_after(printed) == pytest.approx(0.02 + 6 * 1.4826 * 0.005)
    assert alarms_of(Spike(), [*printed, 0.06, 0.02, 0.07]) != []
    assert [a.value for a in alarms_of(Spike(), [*printed, 0.06, 0.02, 0.07])] == [0.07]
    # 2.31 has digits enough: the floor of 1 % is more than a few units.
    assert limit_after([2.31] * 100) == pytest.approx(2.31 * 1.06)


@pytest.mark.parametrize("decimals", [4, 5, 8])
@pytest.mark.parametrize("level", [1.2e-4, -1.2e-4, -3.0, 0.0])
def test_near_zero_and_below_it_the_noise_itself_is_the_scale(level: float, decimals: int) -> None:
    """A share of the level means nothing there, and a log may print two digits of it or one."""
    rng = np.random.default_rng(6)
    noise = 4e-5 if abs(level) < 1 else 0.1
    values = np.round(level + noise * rng.standard_normal(20_000), decimals)
    assert len(alarms_of(Spike(), values)) <= 2
    values[10_000] = level + max(12 * noise, 6 * 10.0**-decimals)
    assert 10_000 in [alarm.step for alarm in alarms_of(Spike(), values)]


def test_a_quick_fall_of_a_young_loss_raises_no_alarm() -> None:
    rng = np.random.default_rng(7)
    steps = np.arange(2000)
    for pace in (20, 100, 500):
        values = 2.5 + 8.4 * np.exp(-steps / pace) + 0.05 * rng.standard_normal(2000)
        assert alarms_of(Spike(), values) == []


def test_a_long_log_is_as_quiet_as_a_short_one() -> None:
    """A million steps of Gaussian noise: 1e-9 a step, and the spread is known to 10 %.

    The 10 % make it 6 - 0.6 deviations at times, 3.3e-8 a step; the level adds a third of a
    deviation. Eight such logs had one between them; three are allowed here.
    """
    rng = np.random.default_rng(8)
    assert len(alarms_of(Spike(), 3 + 0.1 * rng.standard_normal(1_000_000))) <= 3
