"""Weights that moved further than their updates."""

import math

import numpy as np
import pytest

from foreshock.core.detector import AlarmKind
from foreshock.symptoms.weights import Weights
from tests.symptoms.cases import MadeRun, alarm, degrees, found, healthy_with_an_outlier

SEEDS = pytest.mark.parametrize("seed", range(5))
ALARM = [("loss", 90)]


def jump(series: str, step: int, before: float, after: float) -> object:
    return alarm(series, step, kind=AlarmKind.DISCONTINUITY, value=after, baseline=before)


@SEEDS
@pytest.mark.parametrize("factor", [1.1, 3.0, 1e4, 0.2])
@pytest.mark.parametrize("every", [1, 10])
def test_a_weight_that_no_update_moved(seed: int, factor: float, every: int) -> None:
    run = MadeRun(200, seed=seed).every(every, "param_norm")
    run.times(factor, "param_norm/head", first=170)
    told = found(Weights(), run.case(180, [("loss", 170)]))
    assert told["weight_jumped"].degree == 1.0
    assert told["weights_moved_by_updates"].degree == 0.0
    assert told["weight_jumped"].statement.startswith("param_norm/head went from 1")
    assert "and all updates since came to 0.0" in told["weight_jumped"].statement or every == 10
    assert [one.step for one in told["weight_jumped"].readings] == [1170 - every, 1170]


@SEEDS
def test_weights_that_their_updates_moved(seed: int) -> None:
    run = MadeRun(seed=seed)
    grown = 12.0 + np.cumsum(np.where(np.arange(120) >= 90, 1.5, 0.0))
    run.put("param_norm/head", grown).put("update_norm/head", 1.6, 90)
    told = found(Weights(), run.case(95, ALARM))
    assert told["weight_jumped"].degree == 0.0
    assert told["weights_moved_by_updates"].degree == 1.0
    assert told["weight_jumped"].statement.endswith("as its updates since (1.6) can explain")


def test_near_the_limit_degrees_lie_between() -> None:
    run = MadeRun().put("param_norm/head", 13.0, 90).put("update_norm/head", 1 / 3, 90)
    told = degrees(Weights(), run.case(95, ALARM))
    assert told["weight_jumped"] == pytest.approx(0.5, abs=0.02)
    assert sum(told.values()) == pytest.approx(1.0)


def test_of_several_the_furthest_beyond_its_updates_speaks() -> None:
    run = MadeRun().times(1.2, "param_norm/head", "param_norm/global", first=90)
    run.put("update_norm/global", 5.0, 90)
    told = found(Weights(), run.case(95, ALARM))["weight_jumped"]
    assert told.degree == 1.0
    assert told.statement.startswith("param_norm/head")


def test_without_updates_an_alarm_tells_of_a_jump() -> None:
    run = MadeRun().times(3.0, "param_norm/head", first=90).without("update_norm")
    told = found(Weights(), run.case(95, [jump("param_norm/head", 1090, 12, 36)]))
    assert list(told) == ["weight_jumped"]
    assert told["weight_jumped"].degree == 0.7
    assert told["weight_jumped"].statement.endswith("its updates are not measured")


def test_a_jump_seen_by_the_standard_rules() -> None:
    run = MadeRun(400).every(10, "param_norm")
    run.times(4.0, "param_norm/head", first=355).times(2.0, "loss", first=355)
    case = run.seen(362)
    assert degrees(Weights(), case) == {"weight_jumped": 1.0, "weights_moved_by_updates": 0.0}
    assert "weight_jumped" not in degrees(Weights(), run.seen(358)), "not read since"


@SEEDS
def test_a_healthy_run_with_an_outlier(seed: int) -> None:
    assert degrees(Weights(), healthy_with_an_outlier(seed).seen(95)) == {"weight_jumped": 0.0}
    young = MadeRun(seed=seed).put("param_norm/head", 0.01 * np.arange(120.0))
    assert degrees(Weights(), young.case(95, ALARM)) == {"weight_jumped": 0.0}


def test_nothing_can_be_looked_at() -> None:
    assert degrees(Weights(), MadeRun(0).case(-1, [("loss", 3)])) == {}
    assert degrees(Weights(), MadeRun(4).case(3, [("loss", 3)])) == {}
    assert degrees(Weights(), MadeRun().without("param_norm").case(95, ALARM)) == {}
    broken = MadeRun().without("param_norm").put("param_norm", math.nan)
    assert degrees(Weights(), broken.case(95, ALARM)) == {}
