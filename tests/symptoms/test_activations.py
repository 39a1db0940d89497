"""Activations that grew by the time the loss moved."""

import numpy as np
import pytest

from foreshock.symptoms.activations import Activations
from tests.symptoms.cases import MadeRun, degrees, found, healthy_with_an_outlier

LOOK = Activations()
SEEDS = pytest.mark.parametrize("seed", range(6))


def degree(run: MadeRun, last: int, row: int) -> float:
    return degrees(LOOK, run.case(last, [("loss", row)]))["activation_grew"]


@SEEDS
@pytest.mark.parametrize("ahead", [0, 5])
def test_at_once_with_the_loss_or_before_it(seed: int, ahead: int) -> None:
    run = MadeRun(seed=seed).times(4, "activation_norm", first=90 - ahead)
    run.times(2, "loss", first=90)
    case = run.case(110, [("activation_norm", 90 - ahead), ("loss", 90)])
    said = found(LOOK, case)["activation_grew"]
    assert said.degree == 1
    assert f"to step {1090}" in said.statement


@SEEDS
def test_slowly_before_it(seed: int) -> None:
    ramp = np.clip((np.arange(420) - 60) / 300, 0, 1)
    run = MadeRun(steps=420, seed=seed).times(3**ramp, "activation_norm")
    assert degree(run, 380, 370) == 1


@SEEDS
def test_after_it_is_too_late(seed: int) -> None:
    run = MadeRun(seed=seed).times(2, "loss", first=90).times(9, "activation_norm", first=92)
    assert degree(run, 110, 90) == 0


@SEEDS
def test_healthy_runs(seed: int) -> None:
    case = healthy_with_an_outlier(seed).case(110, [("loss", 90)])
    assert degrees(LOOK, case) == {"activation_grew": 0}
    young = MadeRun(steps=420, seed=seed)
    young.first = 0
    young.times(0.05 + 0.5 * np.log1p(np.arange(420) / 30), "activation_norm")
    assert degree(young, 300, 290) == 0


def test_blocks_stand_in_for_the_last_norm() -> None:
    run = MadeRun().without("activation_norm").times(3, "activation_rms/blocks.1", first=88)
    assert degrees(LOOK, run.case(110, [("grad_norm", 88)])) == {"activation_grew": 1}


def test_what_is_not_measured_is_not_told() -> None:
    run = MadeRun().without("activation_norm", "activation_rms")
    assert degrees(LOOK, run.case(110, [("loss", 90)])) == {}
    assert degrees(LOOK, MadeRun(steps=6).case(4, [("loss", 3)])) == {}
    broken = MadeRun().put("activation_norm", np.nan).without("activation_rms")
    assert degrees(LOOK, broken.case(110, [("loss", 90)])) == {}
