"""The rule on the rate: above all that was, at once; never a schedule's own way up."""

import math

import numpy as np
import pytest

from foreshock.core.errors import ConfigError
from foreshock.detectors.rate_jump import RateJump

COSINE = 1e-3 * (0.51 + 0.49 * np.cos(np.linspace(0, math.pi, 400)))


def alarms(values, resumed_at: int | None = None, **settings):
    rule = RateJump(**settings)
    block = np.asarray(values, np.float64)[:, None]
    state, found = rule.init(["lr/global"]), []
    for step, row in enumerate(block.tolist()):
        if step == resumed_at:
            state = rule.resumed(state)
        state, raised = rule.update_step(state, step, row)
        found += raised
    return [(one.kind.value, one.step, one.onset_step) for one in found]


@pytest.mark.parametrize("length", [1, 12, 200])
def test_a_jump_is_said_once_however_long_it_lasts(length: int) -> None:
    rates = COSINE.copy()
    rates[200 : 200 + length] *= 9
    assert alarms(rates) == [("shift", 200, 200)]


def test_the_limit_by_hand() -> None:
    falling = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
    assert alarms([*falling, 3.0]) == []
    assert len(alarms([*falling, 3.01])) == 1
    rising = [1.0, 1.0, 3.0, 3.0, 3.0, 3.0]  # a rise of 2: four times that is above 3 x 3
    assert alarms([*rising, 11.0]) == []
    assert len(alarms([*rising, 11.01])) == 1


@pytest.mark.parametrize("float32", [False, True])
def test_schedules_raise_none(float32: bool) -> None:
    at = np.arange(2000)
    schedules = {
        "warm-up of 1 step": np.minimum(1, at / 1),
        "warm-up of 5 steps": np.minimum(1, at / 5),
        "warm-up of 1,000 steps": np.minimum(1, at / 1000),
        "warm-up from a little": np.minimum(1, 1e-6 + at / 100),
        "exponential": np.minimum(1.0, 1e-9 * 1.1**at),
        "cosine": np.concatenate([COSINE] * 5) * 1e3,
        "steps down": 0.1 ** (at // 400),
        "one cycle": np.interp(at, [0, 600, 2000], [0.04, 1.0, 4e-6]),
        "triangles": 0.1 + np.abs((at % 200) - 100) / 100,
        "warmed up, stable, decayed, and again": np.interp(
            at % 1000, [0, 50, 900, 1000], [0, 1, 1, 0]
        ),
        "inverse square root": np.minimum((at + 1) ** -0.5, (at + 1) * 100**-1.5),
    }
    for name, rates in schedules.items():
        values = (1e-3 * rates).astype(np.float32) if float32 else 1e-3 * rates
        assert alarms(values) == [], name


def test_a_second_jump_is_measured_by_the_first() -> None:
    rates = np.full(300, 1e-3)
    rates[100:110] = 1e-2
    rates[200:210] = 2e-2
    rates[250:] = 1e-1
    assert [step for _, step, _ in alarms(rates)] == [100, 250]


def test_what_a_resumed_run_begins_with_is_accepted() -> None:
    rates = np.full(100, 1e-3)
    rates[50:] = 1e-1
    assert alarms(rates, resumed_at=50) == []
    rates[80:] = 1.0
    assert [step for _, step, _ in alarms(rates, resumed_at=50)] == [80]


def test_what_is_not_finite_or_not_above_zero_says_nothing() -> None:
    assert alarms([1e-3] * 10 + [math.nan, math.inf, 1e-3, 1e-3]) == []
    assert alarms([0.0] * 50 + [1e-3] * 50) == []
    assert alarms([-1.0] * 50 + [1e-3] * 50) == []
    assert alarms([1e-3] * 4 + [1.0]) == []
    assert len(alarms([1e-3] * 5 + [1.0])) == 1


@pytest.mark.parametrize(
    "settings",
    [{"ratio": 1.0}, {"ratio": math.nan}, {"ratio": math.inf}, {"times": 0.0},
     {"window_steps": 0}, {"warmup_steps": 1}, {"rebaseline_after_steps": 0}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(settings) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RateJump(**settings)
