"""Whether the learning rate jumped before an episode, and from what."""

import math
from dataclasses import replace

import numpy as np
import pytest

from foreshock.catalog import make
from foreshock.causes.lr_too_high import LRTooHigh
from foreshock.core.case import REFERENCE_STEPS, Case, RateJump
from foreshock.core.cause import Diagnosis, diagnose
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.symptom import observe
from foreshock.core.timeline import Timeline


def case_of(rates, onset: int, alarm: int | None = None, dtype=np.float64) -> Case:
    line = Timeline(["lr/global"], dtype=dtype)
    for step, rate in enumerate(np.asarray(rates, dtype)):
        line.append(1, step, True, np.array([rate], dtype))
    first = Alarm(
        kind=AlarmKind.SPIKE, detector="d", series="update_ratio/global",
        step=onset if alarm is None else alarm, onset_step=onset, value=9.0,
    )  # fmt: skip
    return Case(timeline=line, alarms=[first])


def jump_of(rates, onset: int, alarm: int | None = None) -> RateJump | None:
    return case_of(rates, onset, alarm).rate_jump


COSINE = 1e-3 * (0.55 + 0.45 * np.cos(np.linspace(0, math.pi, 400)))


def test_a_jump_by_hand() -> None:
    rates = COSINE.copy()
    rates[200:] *= 20
    found = jump_of(rates, 200)
    assert found is not None
    assert (found.step, found.before, found.after) == (200, COSINE[199], 20 * COSINE[200])
    assert found.highest_before == COSINE[150]
    assert not found.was_rising
    assert [reading.step for reading in found.readings] == [199, 200]


@pytest.mark.parametrize("length", [1, 3, 12])
def test_one_that_is_over_counts_as_well(length: int) -> None:
    rates = COSINE.copy()
    rates[200 : 200 + length] *= 8
    found = jump_of(rates, 203, 205)
    assert found is not None
    assert (found.step, found.highest_before) == (200, COSINE[150])


def test_what_came_after_the_first_alarm_or_long_before_is_not_behind_it() -> None:
    rates = COSINE.copy()
    rates[200:] *= 8
    assert jump_of(rates, 195, 199) is None
    assert jump_of(rates, 195, 200) is not None
    assert jump_of(rates, 200 + REFERENCE_STEPS // 2) is not None
    assert jump_of(rates, 201 + REFERENCE_STEPS // 2) is None


@pytest.mark.parametrize("onset", range(1, 120, 7))
@pytest.mark.parametrize("first", [0.0, 1e-7])
@pytest.mark.parametrize("length", [1, 5, 30, 100])
def test_no_step_of_a_warm_up_is_a_jump(onset: int, first: float, length: int) -> None:
    linear = np.minimum(1.0, first + np.arange(120) / length)
    assert length <= 1 or jump_of(linear, onset) is None
    exponential = np.minimum(1.0, 1e-6 * 2.0 ** np.arange(120))
    assert jump_of(exponential, onset) is None


def test_ordinary_schedules_have_none() -> None:
    at = np.arange(400)
    schedules = {
        "cosine": COSINE,
        "constant": np.full(400, 1e-3),
        "steps down": 1e-3 * 0.1 ** (at // 100),
        "linear": 1e-3 * (1 - at / 401),
        "one cycle": 1e-3 * np.where(at < 120, at / 120, 1 - (at - 120) / 300),
        "triangles": 1e-3 * (0.1 + np.abs((at % 80) - 40) / 40),
    }
    for name, rates in schedules.items():
        assert [onset for onset in range(400) if jump_of(rates, onset)] == [], name


def test_a_warm_restart_is_one() -> None:
    """The schedule asked for it; if trouble comes with it, the rate is still what came up."""
    rates = np.concatenate([COSINE, COSINE])
    found = jump_of(rates, 400)
    assert found is not None
    assert found.before == COSINE[-1]


def test_while_the_rate_rises_what_it_would_have_been_is_not_known() -> None:
    rates = np.arange(1, 401) * 1e-6
    rates[200:] *= 10
    found = jump_of(rates, 200)
    assert found is not None
    assert found.was_rising
    case = case_of(rates, 200)
    assert diagnose(case, [LRTooHigh()]).lr_before_jump is None


def test_an_earlier_jump_is_not_what_the_rate_was() -> None:
    rates = np.full(400, 1e-3)
    rates[180:182] = 1e-2
    rates[200:] = 3e-2
    found = jump_of(rates, 200)
    assert found is None or found.highest_before == 1e-3
    rates[200:] = 3e-1
    found = jump_of(rates, 200)
    assert found is not None
    assert (found.step, found.highest_before) == (200, 1e-3)


def test_odd_rates_are_no_jump() -> None:
    for odd in (math.nan, math.inf, -1.0, 0.0):
        rates = np.full(100, 1e-3)
        rates[60:] = odd
        assert jump_of(rates, 60) is None
        rates[55:60] = odd
        rates[60:] = 1e-3
        assert jump_of(rates, 60) is None
    assert jump_of([1e-3] * 4 + [1.0], 4) is None
    assert (
        Case(timeline=Timeline(["loss/global"]), alarms=case_of([1.0], 0).alarms).rate_jump is None
    )


def test_the_diagnosis_keeps_what_the_rate_was() -> None:
    rates = COSINE.copy()
    rates[200:] *= 20
    case = case_of(rates, 200, dtype=np.float32)
    found = diagnose(case, [LRTooHigh()])
    assert found.lr_before_jump == np.float32(COSINE[150])
    assert Diagnosis.from_json(found.to_json()) == found
    level = diagnose(case_of(COSINE, 200), [LRTooHigh()])
    assert level.lr_before_jump is None
    assert "lr_before_jump" not in level.to_json()
    for odd in (0.0, -1.0, "NaN", "Infinity", "much", True):
        with pytest.raises(ValueError):
            Diagnosis.from_json({**found.to_json(), "lr_before_jump": odd})


def test_the_cause_weighs_a_jump_by_how_near_it_is() -> None:
    def weight(onset: int) -> float:
        rates = np.full(400, 1e-3)
        rates[200:203] = 2e-2
        case = case_of(rates, onset)
        case = replace(case, symptoms=observe(case, [make("symptoms", "rate")]))
        said = "rose 20 times in one step, from 0.001 to 0.02 at step 200"
        (fact,) = [one for one in LRTooHigh().weigh(case) if said in one.statement]
        return fact.weight

    assert weight(200) == weight(210) > 0.9
    assert 0 < weight(211) < 0.8 * weight(210)
