"""Where the loss stands."""

import dataclasses
import math

import numpy as np
import pytest

from foreshock.core.case import Case
from foreshock.symptoms.level import Level
from tests.symptoms.cases import MadeRun, alarm, degrees, found, healthy_with_an_outlier

SEEDS = pytest.mark.parametrize("seed", range(6))


@SEEDS
@pytest.mark.parametrize("to", [0.93, 1.07])
def test_another_level_at_an_ordinary_gradient(seed: int, to: float) -> None:
    run = MadeRun(seed=seed).times(to, "loss", first=90)
    told = found(Level(), run.case(115, [("loss", 90)]))["loss_level_shifted"]
    assert told.degree > 0.9
    assert "the loss stands at " in told.statement
    run.times(4.0, "grad_norm", first=90)
    assert degrees(Level(), run.case(115, [("loss", 90)]))["loss_level_shifted"] < 0.1


@SEEDS
def test_a_spike_that_falls_back_is_no_level(seed: int) -> None:
    run = MadeRun(seed=seed).put("loss", 2.5 + 2 * 0.7 ** np.arange(30), 90)
    assert degrees(Level(), run.case(110, [("loss", 90)]))["loss_level_shifted"] < 0.4
    healthy = degrees(Level(), healthy_with_an_outlier(seed).seen(105))
    assert healthy["loss_level_shifted"] < 0.2


@SEEDS
def test_a_loss_that_creeps_up(seed: int) -> None:
    ramp = np.concatenate([np.zeros(50), 0.006 * np.arange(70)])
    run = MadeRun(seed=seed)
    run.put("loss", run["loss"] + ramp)
    assert degrees(Level(), run.case(119, [("loss", 100)]))["loss_rising_slowly"] > 0.8
    jumped = MadeRun(seed=seed).times(1.2, "loss", first=100)
    assert degrees(Level(), jumped.case(119, [("loss", 100)]))["loss_rising_slowly"] < 0.1
    healthy = healthy_with_an_outlier(seed).seen(109)
    assert degrees(Level(), healthy)["loss_rising_slowly"] < 0.1
    falling = MadeRun(seed=seed).put("loss", 4 - 0.01 * np.arange(120))
    assert degrees(Level(), falling.case(119, [("loss", 100)]))["loss_rising_slowly"] == 0.0


@SEEDS
def test_a_drop(seed: int) -> None:
    run = MadeRun(seed=seed).times(0.85, "loss", first=90)
    told = found(Level(), run.case(95, [("grad_norm", 90)]))["loss_dropped"]
    assert told.degree == 1.0
    assert told.statement.startswith("the loss fell to 2.")
    once = MadeRun(seed=seed).at(90, loss=2.0)
    assert degrees(Level(), once.case(95, [("grad_norm", 90)]))["loss_dropped"] == 0.0
    assert degrees(Level(), healthy_with_an_outlier(seed).seen(109))["loss_dropped"] < 0.1


def test_a_drop_that_a_rule_reported_at_a_restart() -> None:
    fields = {"detector": "restart_discontinuity", "baseline": 2.5, "onset_step": 1085}
    run = MadeRun().at(90, loss=5.0)
    low = [alarm("loss", 1089, value=2.3, **fields)]
    told = found(Level(), run.case(95, [("loss", 90)], advisories=low))["loss_dropped"]
    assert told.degree == 1.0
    assert told.statement == "the loss dropped from 2.5 to 2.3 after the restart at step 1085"
    high = [alarm("loss", 1089, value=2.8, **fields)]
    told = degrees(Level(), run.case(95, [("loss", 90)], advisories=high))
    assert told["loss_dropped"] == 0.0


def test_a_loss_near_zero() -> None:
    levels = {1e-7: 1.0, 0.0: 1.0, 9e-5: 1.0, 3e-4: 0.5, 2e-3: 0.0, 2.5: 0.0}
    for level, degree in levels.items():
        run = MadeRun().put("loss", level).at(90, loss=0.5)
        told = degrees(Level(), run.case(92, [("loss", 90)]))
        assert told["loss_near_zero"] == pytest.approx(degree, abs=0.05)
    run = MadeRun().put("loss", np.sin(np.arange(120.0)))
    assert "loss_near_zero" not in degrees(Level(), run.case(92, [("loss", 90)])), "a policy's"


def case_without_facts(case: Case) -> Case:
    return dataclasses.replace(case, facts={})


@SEEDS
def test_destroyed_weights(seed: int) -> None:
    facts = {"vocab_size": 256}
    run = MadeRun(seed=seed).times(math.log(256) / 2.5 * 1.05, "loss", first=90)
    told = found(Level(), run.case(95, [("loss", 90)], facts=facts))["loss_at_uniform"]
    assert told.degree > 0.9
    assert "ln of the vocabulary is 5.545" in told.statement
    back = run.times(0.4, "loss", first=93).case(97, [("loss", 90)], facts=facts)
    assert degrees(Level(), back)["loss_at_uniform"] == 0.0, "one odd batch, and no more"
    half = MadeRun(seed=seed).times(1.5, "loss", first=90)
    told = degrees(Level(), half.case(95, [("loss", 90)], facts=facts))
    assert told["loss_at_uniform"] == 0.0
    case = healthy_with_an_outlier(seed).seen(95, facts=facts)
    assert degrees(Level(), case)["loss_at_uniform"] == 0.0
    assert "loss_at_uniform" not in degrees(Level(), case_without_facts(case))


def test_the_level_at_which_the_run_began() -> None:
    run = MadeRun().put("loss", 5.6, 0, 3).times(2.3, "loss", first=90)
    run.first = 1
    told = found(Level(), run.case(95, [("loss", 90)]))["loss_at_uniform"]
    assert told.degree == 1.0
    assert "what the run began with is 5.6" in told.statement


def test_nothing_can_be_looked_at() -> None:
    assert degrees(Level(), MadeRun(0).case(-1, [("loss", 3)])) == {}
    assert degrees(Level(), MadeRun(4).case(3, [("loss", 3)])) == {}
    assert degrees(Level(), MadeRun().without("loss").case(110, [("grad_norm", 90)])) == {}
    told = degrees(Level(), MadeRun().without("grad_norm").case(115, [("loss", 90)]))
    assert "loss_level_shifted" not in told
    told = degrees(Level(), MadeRun().put("loss", math.nan, 90).case(95, [("loss", 90)]))
    assert "loss_dropped" not in told
