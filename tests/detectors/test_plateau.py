"""The plateau rule by hand, on dead runs, and on runs that are merely flat or slow."""

import math

import numpy as np
import pytest

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.plateau import Plateau

AT = np.arange(3000)[:, None]


def alarms_of(values, steps=None, **settings) -> list[Alarm]:
    rule = Plateau(**settings)
    block = np.asarray(values, np.float64)
    block = block.reshape(len(block), -1)
    names = [f"loss/{place}" for place in range(block.shape[1])]
    steps = np.arange(len(block)) if steps is None else np.asarray(steps)
    return rule.update(rule.init(names), steps, block)[1]


def test_exactly_the_same_value_by_hand() -> None:
    # 3, 2, then 2.5 from step 2 on: its 100th is step 101, its 200th step 201.
    found = alarms_of([3.0, 2.0] + [2.5] * 250, patience_readings=10**6)
    assert [(a.step, a.onset_step) for a in found] == [(101, 2), (201, 101)]
    assert found[0].kind is AlarmKind.PLATEAU
    assert alarms_of([3.0, 2.0] + [2.5] * 99, patience_readings=10**6) == []


def test_exactly_zero_by_hand() -> None:
    assert [a.step for a in alarms_of([0.0] * 20)] == [7, 15]
    assert [(a.step, a.onset_step) for a in alarms_of([12.0, 1e-6] + [0.0] * 8)] == [(9, 2)]
    assert alarms_of([2.0, 0.0] * 20) == []
    assert alarms_of([0.0] * 7) == []


@pytest.mark.parametrize(("num", "told"), [(7, []), (8, [407]), (9, [407])])
def test_a_stretch_in_the_midst_of_a_long_block(num: int, told: list[int]) -> None:
    values = [4.0] * 3 + [3.0 + 0.1 * (place % 3) for place in range(397)]
    assert [a.step for a in alarms_of([*values, *[0.0] * num, *values[3:]])] == told


def test_never_learned_by_hand() -> None:
    # The opening is 4.0, the median of 4.0, 4.1, 3.9; 1 % below is 3.96. Blocks of 20 with a
    # median of 3.97 have not got there, after 100 and again after 200 readings; 3.95 has.
    low = [3.97, 3.98, 3.96, 3.99, 3.95] * 50
    found = alarms_of([4.0, 4.1, 3.9, *low])
    assert [(a.step, a.baseline) for a in found] == [(99, 4.0), (199, 4.0)]
    assert alarms_of([4.0, 4.1, 3.9] + [value - 0.02 for value in low]) == []


def test_a_run_that_never_learns_is_told_by_its_hundredth_reading() -> None:
    rng = np.random.default_rng(0)
    flat = 4.78 + 0.005 * rng.standard_normal((300, 20))
    assert {(a.series, a.step) for a in alarms_of(flat, 10 * np.arange(1, 301))} == {
        (f"loss/{place}", step) for place in range(20) for step in (1000, 2000)
    }
    lost = flat[:, :1] + np.clip(AT[:300] / 50, 0, 3)
    assert [a.step for a in alarms_of(lost)] == [99, 199]


def test_three_readings_allow_no_judgement() -> None:
    assert alarms_of([12.979] * 3) == []
    assert alarms_of([12.979] * 99) == []


def test_what_has_learned_may_be_flat_for_ever() -> None:
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((3000, 20))
    for curve in (2 + 3 * np.exp(-AT / 20), 2 + 3 * np.exp(-AT / 500), 1.6 - AT / 2000):
        assert alarms_of(curve + 0.02 * noise) == []
    assert alarms_of(np.round(0.5 + 3 * np.exp(-AT / 20) + 0.02 * noise, 2)) == []
    assert alarms_of(2 * np.exp(-AT / 300) + 1e-4 * np.abs(noise)) == []


def test_noise_of_either_kind_is_not_dead() -> None:
    """A flat, noisy run that has come down once: no false alarm in 120,000 readings."""
    rng = np.random.default_rng(2)
    shape = (3000, 20)
    opening = np.where(AT < 3, 4.0, 3.0)
    assert alarms_of(opening + 0.3 * rng.standard_normal(shape)) == []
    assert alarms_of(opening + 0.3 * rng.standard_t(3, shape)) == []


def test_a_log_that_begins_in_mid_run_has_no_opening() -> None:
    flat = 1.95 + 0.01 * np.random.default_rng(3).standard_normal(300)
    assert alarms_of(flat, np.arange(94_000, 94_300)) == []
    assert alarms_of(flat, np.arange(1, 301)) != []
    assert alarms_of(flat, 500 * np.arange(1, 301)) != []


def test_a_loss_near_zero_by_design_has_no_opening() -> None:
    rng = np.random.default_rng(4)
    assert alarms_of(np.abs(0.01 * rng.standard_normal((3000, 20)))) == []
    assert alarms_of(-1 + 0.01 * rng.standard_normal((3000, 20))) == []


def test_a_nan_is_no_reading() -> None:
    assert [a.step for a in alarms_of([math.nan, 0.0, math.nan, *[0.0] * 8])] == [9]


@pytest.mark.parametrize(
    "setting",
    [
        {"same_readings": 1}, {"zero_readings": 1}, {"patience_readings": 19}, {"share": 0.0},
        {"least": math.nan},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"plateau.*{next(iter(setting))}"):
        Plateau(**setting)
