"""Artefacts of the log, and outliers and shifts that are none."""

import math

import numpy as np
import pytest

from foreshock.symptoms.metric import Metric
from tests.symptoms.cases import MadeRun, alarm, degrees, found, healthy_with_an_outlier

LOOK = Metric()
SEEDS = pytest.mark.parametrize("seed", range(8))


def told(run: MadeRun, last: int = 110, row: int = 90, **fields: object) -> dict[str, float]:
    return degrees(LOOK, run.case(last, [("loss", row)], **fields))


@SEEDS
@pytest.mark.parametrize("value", [5.0, 0.5])
def test_only_the_loss_moved(seed: int, value: float) -> None:
    run = MadeRun(seed=seed).at(92, loss=value)
    said = found(LOOK, run.case(110, [("loss", 92)]))["only_the_metric"]
    assert said.degree == 1
    assert "and the gradient norm 0.4" in said.statement or "0.3" in said.statement


@SEEDS
def test_a_loss_of_nan_with_a_gradient_as_usual(seed: int) -> None:
    run = MadeRun(seed=seed).at(92, loss=math.nan)
    case = run.case(110, [alarm("loss", 1092, value=math.nan)])
    assert degrees(LOOK, case)["only_the_metric"] == 1
    run.at(92, grad_norm=math.nan)
    case = run.case(110, [alarm("loss", 1092, value=math.nan)])
    assert degrees(LOOK, case)["only_the_metric"] == 0


@SEEDS
def test_a_harmless_outlier_is_none(seed: int) -> None:
    told_of = told(healthy_with_an_outlier(seed))
    assert set(told_of) == set(LOOK.usual)
    assert not any(told_of.values())
    small = MadeRun(seed=seed).at(92, loss=2.5 + 0.04 * 7)
    assert "only_the_metric" not in told(small), "the gradient need not show so little"


@SEEDS
@pytest.mark.parametrize("series", ["grad_norm", "update_ratio", "param_norm"])
@pytest.mark.parametrize("later", [0, 1])
def test_a_loss_that_others_follow_is_no_artefact(seed: int, series: str, later: int) -> None:
    run = MadeRun(seed=seed).at(92, loss=5.0).times(3, series, first=92 + later, stop=94)
    assert told(run)["only_the_metric"] == 0


def test_what_a_probe_found_is_no_artefact() -> None:
    run = MadeRun().at(92, loss=5.0)
    assert told(run, facts={"harm": "copying fell"})["only_the_metric"] == 0
    assert told(run, facts={"harm": ""})["only_the_metric"] == 1


@SEEDS
@pytest.mark.parametrize("series", ["loss", "grad_norm"])
@pytest.mark.parametrize(("factor", "degree"), [(8, 1), (0.25, 1), (2, 1), (2.5, 0.5), (1.1, 0)])
def test_a_factor_from_one_step_on(seed: int, series: str, factor: float, degree: float) -> None:
    run = MadeRun(seed=seed).times(factor, series, first=92)
    said = found(LOOK, run.case(115, [(series, 92)]))["constant_factor"]
    assert said.degree == pytest.approx(degree, abs=0.1)
    if degree:
        assert f"{series}/global is " in said.statement
        assert "from step 1092 on" in said.statement


@SEEDS
def test_outliers_in_between_do_not_hide_it(seed: int) -> None:
    run = MadeRun(seed=seed).times(8, "loss", first=92).at(104, loss=30.0)
    assert told(run, 115)["constant_factor"] > 0.9


@SEEDS
def test_what_decays_or_grows_or_jitters_is_no_factor(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.arange(30)
    for factors in (
        1 + 3 * np.exp(-rows / 8),
        1.06**rows,
        np.clip(1 + rows / 10, 1, 2.9),
        3 * rng.lognormal(0, 0.3, 30),
    ):
        run = MadeRun(seed=seed).times(factors, "loss", first=90)
        assert told(run, 119)["constant_factor"] <= 0.25, factors
    back = MadeRun(seed=seed).times(2, "loss", first=91, stop=105)
    assert told(back, 119)["constant_factor"] == 0


def test_too_few_readings_to_see_a_factor() -> None:
    assert "constant_factor" not in told(MadeRun().times(8, "loss", "grad_norm", first=90), 93)


@SEEDS
def test_exact_values(seed: int) -> None:
    said = found(LOOK, MadeRun(seed=seed).at(95, loss=0.0).case(110, [("loss", 95)]))
    assert said["exact_value"].degree == 1
    assert "exactly 0 in 1 steps from step 1095 on" in said["exact_value"].statement
    run = MadeRun(seed=seed).put("grad_norm", 1.0, 92)
    assert told(run)["exact_value"] == 1
    run.put("grad_norm", np.where(np.arange(120) % 3 > 0, 1.0, 0.98))
    assert told(run)["exact_value"] == 0, "it was so before"
    assert told(MadeRun(seed=seed).at(95, grad_norm=1.0))["exact_value"] == 0


def test_a_loss_near_zero_may_be_printed_as_zero() -> None:
    run = MadeRun().times(1e-5, "loss").at(95, loss=0.0)
    assert told(run)["exact_value"] == 0


def test_a_printed_log() -> None:
    run = MadeRun(steps=1200).times(8, "loss", first=900).printed(10)
    case = run.case(1199, [alarm("loss", 1900)])
    assert degrees(LOOK, case) == {"only_the_metric": 1, "constant_factor": 1, "exact_value": 0}


def test_what_is_not_measured_is_not_told() -> None:
    assert told(MadeRun(steps=6), 4, 3) == {}
    assert told(MadeRun().only("loss")) == {"constant_factor": 0, "exact_value": 0}
    calm = MadeRun().case(110, [("grad_norm", 90)])
    assert "only_the_metric" not in degrees(LOOK, calm)


@SEEDS
@pytest.mark.parametrize(("on_loss", "on_norm", "together"), [(8, 8, 1), (8, 30, 0), (8, 1, 0)])
def test_loss_and_gradient_scaled_by_one_factor(
    seed: int, on_loss: float, on_norm: float, together: float
) -> None:
    run = MadeRun(seed=seed).times(on_loss, "loss", first=90).times(on_norm, "grad_norm", first=90)
    found = told(run, 94, 86)  # a causal onset may lie some steps before the jump
    assert found["scaled_together"] == pytest.approx(together, abs=0.35)
    assert "scaled_together" not in told(run, 90)  # one reading is none
