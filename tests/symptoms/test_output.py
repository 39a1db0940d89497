"""Drift of what the model predicts with, before the loss moves."""

import numpy as np
import pytest

from foreshock.symptoms.output import Output
from tests.symptoms.cases import MadeRun, degrees, found, healthy_with_an_outlier

LOOK = Output()
ALL = {"log_z_grew", "output_logit_grew", "head_grew"}
SEEDS = pytest.mark.parametrize("seed", range(6))
SERIES = ("log_z", "log_z_absmax", "max_output_logit", "param_norm/head")


def drifting(seed: int, factor: float) -> MadeRun:
    """At one rate over 300 steps, and the loss with it in the end."""
    run = MadeRun(steps=420, seed=seed).every(10, "param_norm")
    ramp = np.clip((np.arange(420) - 60) / 300, 0, 1)
    return run.times(factor**ramp, *SERIES).times(1.2, "loss", first=380)


@SEEDS
def test_a_drift_is_seen_in_all_of_them(seed: int) -> None:
    told = degrees(LOOK, drifting(seed, 3.0).case(400, [("loss", 380)]))
    assert told == dict.fromkeys(ALL, 1)


@SEEDS
def test_a_drift_that_the_loss_has_not_felt_yet(seed: int) -> None:
    run = drifting(seed, 3.0)
    said = found(LOOK, run.case(360, [("log_z", 340)]))
    assert all(one.degree > 0.9 for one in said.values())
    assert "while the loss has not moved" in said["log_z_grew"].statement


@SEEDS
def test_one_that_goes_down_grows_in_size(seed: int) -> None:
    run = drifting(seed, 3.0).times(-1, "log_z")
    assert degrees(LOOK, run.case(400, [("loss", 380)]))["log_z_grew"] == 1


@SEEDS
def test_what_follows_the_loss_is_none(seed: int) -> None:
    run = MadeRun(steps=420, seed=seed).times(3.0, *SERIES, first=380).times(2, "loss", first=380)
    told = degrees(LOOK, run.case(400, [("loss", 380)]))
    assert told == dict.fromkeys(ALL, 0)


@SEEDS
def test_healthy_runs(seed: int) -> None:
    """An outlier; small levels that grow; and a head that grows like every young one does."""
    told = degrees(LOOK, healthy_with_an_outlier(seed).case(110, [("loss", 90)]))
    assert told == dict.fromkeys(ALL, 0)
    run = MadeRun(steps=420, seed=seed)
    run.first = 0
    run.times(0.3 * 2 ** (np.arange(420) / 420), "max_output_logit")
    run.times(0.1 + np.arange(420) / 40, "param_norm/head")
    told = degrees(LOOK, run.case(400, [("loss", 380)]))
    assert told == dict.fromkeys(ALL, 0)


def test_a_tied_head_or_one_of_another_name_is_told_by_facts() -> None:
    run = drifting(0, 3.0)
    run.rows = {name.replace("/head", "/readout"): one for name, one in run.rows.items()}
    case = run.case(400, [("loss", 380)])
    assert set(degrees(LOOK, case)) == ALL - {"head_grew"}
    case = run.case(400, [("loss", 380)], facts={"roles": {"readout": "head"}})
    assert degrees(LOOK, case)["head_grew"] == 1


def test_what_is_not_measured_is_not_told() -> None:
    assert degrees(LOOK, MadeRun().printed().case(119, [("loss", 90)])) == {}
    assert degrees(LOOK, MadeRun(steps=9).case(8, [("loss", 7)])) == {}
    run = MadeRun().without("log_z", "log_z_absmax", "param_norm")
    assert set(degrees(LOOK, run.case(110, [("loss", 90)]))) == {"output_logit_grew"}
