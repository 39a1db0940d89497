"""Attention logits and entropies: high, grown before the loss, and neither."""

import numpy as np
import pytest

from foreshock.symptoms.attention import Attention
from tests.symptoms.cases import MadeRun, degrees, found, healthy_with_an_outlier

LOOK = Attention()
LOGITS = ("max_attention_logit", "max_attention_logit/blocks.0")
SEEDS = pytest.mark.parametrize("seed", range(6))


def grown(seed: int, factor: float, *, steps: int = 100, row: int = 350) -> MadeRun:
    """Logits that grow `factor`-fold, ever faster or at one rate, up to where the loss moves."""
    run = MadeRun(steps=420, seed=seed)
    ramp = np.clip((np.arange(420) - (row - steps)) / steps, 0, 1)
    return run.times(factor**ramp, *LOGITS).times(2, "loss", first=row)


@SEEDS
def test_logits_that_grew_before_the_loss_moved(seed: int) -> None:
    case = grown(seed, 20.0).case(380, [("loss", 350)])
    assert degrees(LOOK, case)["attention_logit_high"] == 1
    assert degrees(LOOK, case)["attention_logit_grew_first"] == 1
    said = found(LOOK, case)["attention_logit_grew_first"]
    assert "steps before the loss moved" in said.statement
    assert all(one.step < 1350 for one in said.readings)


@SEEDS
def test_logits_of_one_layer_are_named(seed: int) -> None:
    run = MadeRun(steps=200, seed=seed).times(30.0, "max_attention_logit/blocks.1", first=150)
    said = found(LOOK, run.case(190, [("loss", 185)]))
    assert said["attention_logit_high"].degree == 1
    assert "in blocks.1" in said["attention_logit_high"].statement
    assert said["attention_logit_grew_first"].degree == 1


@SEEDS
def test_logits_that_follow_the_loss_did_not_grow_first(seed: int) -> None:
    run = MadeRun(steps=200, seed=seed).times(2, "loss", first=150)
    run.times(50.0, *LOGITS, first=150)
    told = degrees(LOOK, run.case(190, [("loss", 150)]))
    assert told["attention_logit_high"] == 1
    assert told["attention_logit_grew_first"] == 0


@SEEDS
def test_a_healthy_run_with_an_outlier(seed: int) -> None:
    told = degrees(LOOK, healthy_with_an_outlier(seed).case(110, [("loss", 90)]))
    assert told == {
        "attention_logit_high": 0,
        "attention_logit_grew_first": 0,
        "attention_entropy_fell": 0,
    }


@SEEDS
def test_growth_as_in_every_young_model_is_none(seed: int) -> None:
    """Measured in a healthy small model: from 4 to 25 in 400 steps; here up to 40."""
    run = MadeRun(steps=420, seed=seed).times(10 * np.sqrt(np.arange(420) / 420), *LOGITS)
    run.first = 0
    assert degrees(LOOK, run.case(400, [("loss", 380)]))["attention_logit_grew_first"] == 0
    run.first = 100_000
    assert degrees(LOOK, run.case(400, [("loss", 380)]))["attention_logit_grew_first"] > 0.5
    run = MadeRun(steps=420, seed=seed).times(0.5 * 6 ** (np.arange(420) / 420), *LOGITS)
    assert degrees(LOOK, run.case(400, [("loss", 380)]))["attention_logit_grew_first"] == 0


def test_degrees_rise_with_the_logit() -> None:
    rising = []
    for level in (40.0, 60.0, 75.0, 90.0, 110.0):
        run = MadeRun().put("max_attention_logit", level, 90)
        rising.append(degrees(LOOK, run.case(110, [("loss", 90)]))["attention_logit_high"])
    assert rising == sorted(rising)
    assert (rising[0], rising[-1]) == (0, 1)
    assert 0.2 < rising[1] < rising[2] < rising[3] < 1


def test_an_infinite_logit_is_high_and_a_nan_is_nothing() -> None:
    run = MadeRun().without("max_attention_logit/blocks.0", "max_attention_logit/blocks.1")
    run.put("max_attention_logit", np.inf, 95, 96).put("max_attention_logit", np.nan, 96)
    assert degrees(LOOK, run.case(110, [("loss", 95)]))["attention_logit_high"] == 1
    run.put("max_attention_logit", np.nan)
    assert set(degrees(LOOK, run.case(110, [("loss", 95)]))) == {"attention_entropy_fell"}


@SEEDS
def test_an_entropy_that_is_measured_now_and_then(seed: int) -> None:
    run = MadeRun(steps=420, seed=seed).every(50, "attention_entropy")
    run.times(0.3, "attention_entropy/blocks.1", first=340)
    said = found(LOOK, run.case(380, [("loss", 345)]))["attention_entropy_fell"]
    assert said.degree == 1
    assert "in blocks.1" in said.statement
    assert degrees(LOOK, run.case(330, [("loss", 325)]))["attention_entropy_fell"] == 0


def test_what_is_not_measured_is_not_told() -> None:
    run = MadeRun().without("max_attention_logit", "attention_entropy")
    assert degrees(LOOK, run.case(110, [("loss", 90)])) == {}
    assert degrees(LOOK, MadeRun().printed().case(119, [("loss", 90)])) == {}
    short = MadeRun(steps=9).case(8, [("loss", 6)])
    assert "attention_logit_grew_first" not in degrees(LOOK, short)
    seldom = MadeRun().every(50, "attention_entropy").case(110, [("loss", 90)])
    assert "attention_entropy_fell" not in degrees(LOOK, seldom)
