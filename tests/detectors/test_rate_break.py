"""The rule on a rate that leaves its course: at real breaks alone, whatever the schedule."""

import math

import numpy as np
import pytest

from foreshock.core.errors import ConfigError
from foreshock.detectors.rate_break import RateBreak

AT = np.arange(2000)
COSINE = 1e-3 * (0.51 + 0.49 * np.cos(np.linspace(0, math.pi, 2000)))


def breaks(values, resumed_at: int | None = None, **settings) -> list[int]:
    rule = RateBreak(**settings)
    state, found = rule.init(["lr/global"]), []
    for step, value in enumerate(np.asarray(values, np.float64).tolist()):
        if step == resumed_at:
            state = rule.resumed(state)
        state, raised = rule.update_step(state, step, [value])
        found += raised
    return [one.step for one in found]


@pytest.mark.parametrize("float32", [False, True])
def test_smooth_schedules_raise_none(float32: bool) -> None:
    decay = np.clip((AT - 1500) / 500, 0, 1)
    schedules = {
        "cosine to a tenth": COSINE,
        "cosine to nothing": 1e-3 * (1 + np.cos(np.linspace(0, math.pi, 2000))),
        "linear to nothing": np.interp(AT, [0, 100, 1999], [0, 1, 0]),
        "warm-up of 1 step": np.minimum(1, AT / 1),
        "warm-up of 3 steps": np.minimum(1, (AT + 1) / 3),
        "warm-up of 1,000 steps": np.minimum(1, AT / 1000),
        "warm-up from a little": np.minimum(1, 1e-6 + AT / 100),
        "exponential": np.minimum(1.0, 1e-9 * 1.1**AT),
        "stable, then linear to nothing": np.minimum(AT / 50, 1 - decay).clip(0, 1),
        "stable, then by the square root": np.minimum(1, AT / 50) * (1 - np.sqrt(decay)),
        "decayed within ten steps": np.interp(AT, [0, 50, 1500, 1510], [0, 1, 1, 0]),
        "one cycle": np.interp(AT, [0, 600, 2000], [0.04, 1.0, 4e-6]),
        "inverse square root": np.minimum((AT + 1) ** -0.5, (AT + 1) * 100**-1.5),
        "constant": np.ones(2000),
        "none": np.zeros(2000),
    }
    for name, rates in schedules.items():
        values = rates.astype(np.float32) if float32 else rates
        assert breaks(values) == [], name


def test_a_schedule_in_steps_breaks_at_its_steps_alone() -> None:
    assert breaks(0.1 ** (AT // 400)) == [400, 800, 1200, 1600]
    assert breaks(np.minimum(1, AT / 50) * 0.316 ** (AT // 700)) == [700, 1400]


def test_warm_restarts_break_where_they_restart() -> None:
    assert breaks(COSINE[AT * 5 % 2000]) == [400, 800, 1200, 1600]


def test_a_schedule_that_is_lost_at_a_restart_breaks_there() -> None:
    share = np.minimum(1, (AT + 1) / 30)
    for lost in (share[:500] * 1e-3, np.full(500, 1e-3)):
        rates = np.concatenate([COSINE[:1200], lost])
        assert breaks(rates) == breaks(rates, resumed_at=1200) == [1200]


def test_the_limits_by_hand() -> None:
    assert breaks([1.0] * 10 + [0.6701]) == []
    assert breaks([1.0] * 10 + [0.6699]) == [10]
    assert breaks([1.0] * 10 + [1.5]) == []
    assert breaks([1.0] * 10 + [1.501]) == [10]
    uneven = [1.0, 1.125] * 5  # changes of 0.125: four of them are 0.5
    assert breaks([*uneven, 0.625]) == []
    assert breaks([*uneven, 0.62]) == [10]


def test_up_and_back_are_two() -> None:
    rates = COSINE.copy()
    rates[500:520] *= 2
    assert breaks(rates) == [500, 520]


def test_what_is_not_finite_or_not_above_zero_says_nothing() -> None:
    assert breaks([1e-3] * 10 + [math.nan, math.inf, 1e-3]) == []
    assert breaks([1e-3] * 10 + [math.nan, 1e-4]) == [11]
    assert breaks([0.0] * 50 + [1e-3] * 50) == []
    assert breaks([1e-3] * 4 + [1e-5]) == []
    assert breaks([1e-3] * 5 + [1e-5]) == [5]


@pytest.mark.parametrize(
    "settings",
    [{"fall": 0.0}, {"rise": math.nan}, {"times": 0.0}, {"window_steps": 0}, {"warmup_steps": 1}],
)
def test_settings_out_of_range_are_refused(settings) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RateBreak(**settings)
