"""The drift rule by hand, under noise, and under known climbs."""

import math

import numpy as np
import pytest

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.drift import Drift


def alarms_of(values, *, signal: str = "loss", rule: Drift | None = None) -> list[Alarm]:
    rule = rule or Drift()
    block = np.asarray(values, np.float64)
    block = block.reshape(len(block), -1)
    names = [f"{signal}/{place}" for place in range(block.shape[1])]
    return rule.update(rule.init(names), np.arange(len(block)), block)[1]


def first_after(alarms: list[Alarm], change: int) -> dict[str, int]:
    first: dict[str, int] = {}
    for alarm in alarms:
        if alarm.step >= change:
            first.setdefault(alarm.series, alarm.step - change)
    return first


def test_the_first_alarm_by_hand() -> None:
    # The window 1 .. 64 in a scrambled order (37 * i mod 65): median 32.5, quartiles 17 and 48,
    # so 31 / 1.349 = 22.98; tails 4 and 61: 57 / 3.29 = 17.33. At 32.5 + 2 * 22.98 each reading
    # adds 2 - 1 deviations: the sixth alarms at a limit of 5.9, none of six at 6.1.
    window = [float(37 * place % 65) for place in range(1, 65)]
    far = 32.5 + 2.001 * (31 / 1.349)
    for limit, expected in ((5.9, [(69, 64, 32.5)]), (6.1, [])):
        found = alarms_of([*window, *[far] * 6], rule=Drift(limit=limit))
        assert [(a.step, a.onset_step, a.baseline) for a in found] == expected


def test_one_outlier_and_three_never_alarm_and_four_do() -> None:
    calm = 2.5 + 0.02 * np.random.default_rng(0).standard_normal(400)
    for width, quiet in ((1, True), (3, True), (5, False)):
        values = calm.copy()
        values[300 : 300 + width] = 1e6
        assert (alarms_of(values) == []) is quiet, width


def test_false_alarms_are_rare() -> None:
    """Upper bounds on the alarms a reading, over 800,000 readings each.

    Gaussian: none was seen, so below 4e-6 at 95 %. Student t with 3 degrees of freedom:
    4e-6 was measured; trainscope's rule raises 6e-3 there.
    """
    rng = np.random.default_rng(1)
    shape = (4000, 200)
    assert len(alarms_of(3 + 0.1 * rng.standard_normal(shape))) <= 2
    assert len(alarms_of(3 + 0.1 * rng.standard_t(3, shape))) <= 2e-5 * 800_000
    norms = np.exp(0.3 * rng.standard_normal(shape))
    assert len(alarms_of(norms, signal="grad_norm")) <= 2e-5 * 800_000


@pytest.mark.parametrize("weight", [0.3, 0.1, 0.05, 0.02, 0.005])
def test_a_running_mean_creeps_and_is_left_alone(weight: float) -> None:
    """A running mean wanders: without the evenness 2 % of its readings would be flagged."""
    rng = np.random.default_rng(2)
    mean = np.zeros(60)
    values = np.empty((4000, 60))
    for row in range(len(values)):
        mean += weight * (rng.standard_normal(60) - mean)
        values[row] = mean
    assert len(alarms_of(3 + 0.1 * values[1000:])) <= 5e-4 * values[1000:].size


def test_a_climb_is_found_within_thirteen_readings() -> None:
    """2.5 +/- 0.02, climbing by 2.0 over 500: median 12 measured, trainscope's rule needs 13."""
    rng = np.random.default_rng(3)
    at = np.arange(2000)[:, None]
    values = 2.5 + 0.02 * rng.standard_normal((2000, 60)) + np.clip(at - 1000, 0, 500) / 250
    delays = first_after(alarms_of(values), 1000)
    assert len(delays) == 60
    assert np.median(list(delays.values())) <= 13
    assert max(delays.values()) <= 22


def test_a_level_that_stays_is_reported_once_as_a_shift_and_then_accepted() -> None:
    rng = np.random.default_rng(4)
    values = 2.5 + 0.02 * rng.standard_normal(1200)
    values[600:] += 0.3
    found = alarms_of(values)
    assert found[0].step == 603
    assert 597 <= found[0].onset_step <= 600, "where the sum last left zero"
    assert [a.kind for a in found] == [AlarmKind.DRIFT] * 99 + [AlarmKind.SHIFT]
    assert found[-1].step == 702


def test_alarms_end_with_the_excursion_and_two_short_ones_make_no_shift() -> None:
    rng = np.random.default_rng(8)
    values = 2.5 + 0.02 * rng.standard_normal(1000)
    values[500:560] += 0.3
    values[600:660] += 0.3
    found = alarms_of(values)
    assert {a.kind for a in found} == {AlarmKind.DRIFT}
    assert [a.step for a in found] == [*range(503, 560), *range(603, 660)]


def test_a_loss_may_fall_as_it_likes() -> None:
    rng = np.random.default_rng(5)
    at = np.arange(3000)[:, None]
    for curve in (2 + 8 * np.exp(-at / 50), 2 + 8 / np.sqrt(1 + at / 20), 5 - at / 1000):
        assert alarms_of(curve + 0.05 * rng.standard_normal((3000, 20))) == []
    staircase = 1.1 - 0.35 * (at // 1000) + 0.1 * rng.standard_normal((3000, 20))
    assert alarms_of(staircase) == []


def test_a_norm_is_watched_both_ways_once_it_has_been_steady() -> None:
    rng = np.random.default_rng(6)
    at = np.arange(3000)[:, None]
    noise = np.exp(0.1 * rng.standard_normal((3000, 40)))
    warm_up = (1 + 20 * np.exp(-at / 100)) * noise
    assert alarms_of(warm_up, signal="grad_norm") == []
    for way in (1, -1):
        drifting = warm_up * np.exp(way * np.clip(at - 2000, 0, None) / 200)
        delays = first_after(alarms_of(drifting, signal="grad_norm"), 2000)
        assert len(delays) == 40
        assert np.median(list(delays.values())) < 60


def test_what_has_no_logarithm_is_passed_over() -> None:
    rng = np.random.default_rng(7)
    values = np.exp(0.1 * rng.standard_normal(600))
    gaps = [0.0] * 20 + [-1.0] * 20 + [math.nan] * 20 + [math.inf] * 20
    assert alarms_of(np.insert(values, 400, gaps), signal="grad_norm") == []
    tiny = np.insert(values, 400, [1e-3] * 20)
    assert alarms_of(tiny, signal="grad_norm")[0].step == 407  # eight of 1.5 reach 12


@pytest.mark.parametrize(
    "setting",
    [
        {"window_readings": 0}, {"refresh_readings": 0}, {"rebaseline_after_steps": 0},
        {"slack": 0.0}, {"slack": 3.0}, {"limit": math.nan}, {"floor": 0.0},
        {"floor_log": math.inf}, {"refresh_readings": 193},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"drift.*{next(iter(setting))}"):
        Drift(**setting)
