"""The loss-scale rule by hand, on scalers that work, and on those that cannot."""

import math

import numpy as np
import pytest

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.loss_scale_collapse import LossScaleCollapse


def alarms_of(values, steps=None, **settings) -> list[Alarm]:
    rule = LossScaleCollapse(**settings)
    block = np.asarray(values, np.float64)[:, None]
    steps = np.arange(len(block)) if steps is None else np.asarray(steps)
    return rule.update(rule.init(["loss_scale/global"]), steps, block)[1]


def simulated(num: int, *, start: float, growth: int, fits, seed: int = 0) -> np.ndarray:
    """What a dynamic scaler prints: halved where gradients do not fit, else doubled in time.

    `fits` is the scale at which the typical gradient of a step just fits; gradients vary by a
    factor of two, and one in a thousand is sixteen times as large.
    """
    rng = np.random.default_rng(seed)
    size = np.exp2(rng.standard_normal(num) + 4 * (rng.random(num) < 1e-3))
    scale, clean, printed = start, 0, []
    for step in range(num):
        printed.append(scale)
        if scale * size[step] > fits(step):
            scale, clean = scale / 2, 0
        else:
            clean += 1
            if clean == growth:
                scale, clean = scale * 2, 0
    return np.array(printed)


def test_five_halvings_by_hand() -> None:
    # Stable at 1024 for 30 steps, then halved at steps 30 to 36: 32 at step 34 is 1024 / 32.
    values = [1024.0] * 30 + [1024.0 / 2**fall for fall in range(1, 8)]
    found = alarms_of(values)
    assert [(a.step, a.value) for a in found] == [(34, 32.0), (35, 16.0), (36, 8.0)]
    assert (found[0].onset_step, found[0].baseline, found[0].threshold) == (30, 1024.0, 32.0)
    assert found[0].kind is AlarmKind.COLLAPSE
    values[32] = 512.0  # a growth on the way: from there on 16 is a 32nd
    assert [a.step for a in alarms_of(values)] == [35, 36]


@pytest.mark.parametrize("start", [2.0**16, 2.0**24, 2.0**32])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_the_first_search_is_no_collapse(start: float, every: int) -> None:
    search = np.repeat(start / 2.0 ** np.arange(14), every)
    assert alarms_of([*search, *[search[-1]] * 500]) == []


def test_a_search_that_never_finds_a_floor_is_one() -> None:
    found = alarms_of(2.0 ** (16 - np.arange(30)))
    assert (found[0].step, found[0].onset_step, found[0].value) == (17, 17, 0.5)
    assert [a.step for a in alarms_of([1e-3, 0.0, 0.0])] == [1, 2]


@pytest.mark.parametrize("growth", [100, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_a_scaler_that_works_is_quiet(growth: int, seed: int) -> None:
    """Search, then grow, halve, grow: 300,000 steps in all, and none of them alarms."""
    values = simulated(
        30_000, start=2.0**24, growth=growth, seed=seed,
        fits=lambda step: 2.0 ** (14 + math.sin(step / 5000)),
    )  # fmt: skip
    assert len(set(values)) > 5
    for printed_every in (1, 10, 100):
        assert alarms_of(values[::printed_every], np.arange(30_000)[::printed_every]) == []
    averaged = values[:29_900].reshape(-1, 100).mean(axis=1)
    assert alarms_of(averaged, 100 * np.arange(1, 300)) == []


def test_a_scale_that_is_not_scaled_is_quiet() -> None:
    for constant in (1.0, 65536.0, 0.0, 0.5):
        assert alarms_of([constant] * 300) == []


def test_every_real_collapse_is_found_and_soon() -> None:
    values = simulated(
        6000, start=2.0**16, growth=1000,
        fits=lambda step: 2.0**14 if step < 4000 else 0.0,
    )  # fmt: skip
    found = alarms_of(values)
    assert 4000 < found[0].step <= 4006
    assert 3990 < found[0].onset_step <= 4002


def test_a_log_that_begins_in_mid_run_has_its_search_behind_it() -> None:
    falling = 2.0 ** (20 - np.arange(7))
    assert alarms_of(falling, np.arange(7)) == []
    assert [a.step for a in alarms_of(falling, np.arange(17_060, 17_067))] == [17_065, 17_066]
    assert alarms_of(falling, 500 * np.arange(1, 8)) == []


def test_a_new_scaler_searches_anew() -> None:
    values = [1024.0] * 50 + [2.0 ** (32 - fall) for fall in range(20)] + [8192.0] * 50
    assert alarms_of(values) == []


def test_what_stays_is_accepted_and_reported_once() -> None:
    found = alarms_of([1024.0] * 30 + [0.25] * 300)
    assert [a.kind for a in found] == [AlarmKind.COLLAPSE] * 99 + [AlarmKind.SHIFT]
    assert [a.step for a in alarms_of([1024.0] * 30 + [0.25] * 300 + [0.125])[100:]] == [330]


def test_a_nan_is_no_reading() -> None:
    values = [1024.0] * 30 + [math.nan] * 5 + [512.0] * 100
    assert alarms_of(values) == []


@pytest.mark.parametrize(
    "setting",
    [{"factor": 1.0}, {"factor": math.nan}, {"floor": -1.0}, {"search_readings": 0},
     {"rebaseline_after_steps": 0}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"loss_scale_collapse.*{next(iter(setting))}"):
        LossScaleCollapse(**setting)
