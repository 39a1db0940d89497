"""What the optimizer holds."""

import math

import numpy as np
import pytest

from foreshock.symptoms.optimizer import Optimizer
from tests.symptoms.cases import PARTS, MadeRun, degrees, found, healthy_with_an_outlier

SEEDS = pytest.mark.parametrize("seed", range(5))
ALARM = [("loss", 90)]
CALM = ("rms_t_rose", "first_moment_grew", "second_moment_fell", "moments_nonfinite",
        "update_count_fell", "gradient_near_epsilon", "update_collapsed")  # fmt: skip
COUNT = int((0.06 / 1e-3 * 4.4) ** 2)
"""Weights of a model whose usual update is 4.4 times smaller than that of a fresh Adam."""


@SEEDS
def test_a_healthy_run_with_an_outlier(seed: int) -> None:
    case = healthy_with_an_outlier(seed).seen(95, facts={"num_parameters": COUNT})
    told = degrees(Optimizer(), case)
    assert set(told) == {*CALM, "update_like_fresh"}
    assert max(told.values()) == 0.0


@SEEDS
@pytest.mark.parametrize("scope", ["global", "blocks.1.mlp"])
def test_rms_t_of_any_group(seed: int, scope: str) -> None:
    run = MadeRun(seed=seed).put(f"rms_t/{scope}", 4.0, 84, 86)
    told = found(Optimizer(), run.case(95, ALARM))["rms_t_rose"]
    assert told.degree == 1.0
    assert told.statement.startswith(f"rms_t/{scope} rose to 4, ")
    assert [one.step for one in told.readings] == [1084]
    near = MadeRun(seed=seed).put(f"rms_t/{scope}", 2.3, 89)
    assert degrees(Optimizer(), near.case(95, ALARM))["rms_t_rose"] == pytest.approx(0.5, abs=0.1)
    noisy = MadeRun(seed=seed).times(np.tile([1.0, 0.4, 1.8, 0.6, 1.4], 24), f"rms_t/{scope}")
    noisy.put(f"rms_t/{scope}", 2.6, 88, 89)
    assert degrees(Optimizer(), noisy.case(95, ALARM))["rms_t_rose"] < 0.3
    ever = MadeRun(seed=seed).put(f"rms_t/{scope}", 4.0)
    assert degrees(Optimizer(), ever.case(95, ALARM))["rms_t_rose"] == 0.0, "as it always was"


@SEEDS
def test_a_first_moment_that_grew_alone(seed: int) -> None:
    lower = [f"first_moment_norm/{part}" for part in PARTS[:3]]
    run = MadeRun(seed=seed).times(2.0, *lower, first=86)
    told = found(Optimizer(), run.case(95, ALARM))["first_moment_grew"]
    assert told.degree > 0.9
    assert "with its second moment level" in told.statement
    one = MadeRun(seed=seed).times(2.0, lower[0], first=86)
    assert degrees(Optimizer(), one.case(95, ALARM))["first_moment_grew"] < 0.2
    seconds = [name.replace("first_moment_norm", "second_moment_rms") for name in lower]
    both = run.times(1.8, *seconds, first=86)
    assert degrees(Optimizer(), both.case(95, ALARM))["first_moment_grew"] < 0.2
    late = MadeRun(seed=seed).times(2.0, *lower, first=90).at(90, grad_norm=4.0)
    told = degrees(Optimizer(), late.case(95, ALARM))
    assert told["first_moment_grew"] < 0.2, "an odd gradient moved it"
    noisy = MadeRun(seed=seed)
    for name in lower:
        noisy.times(np.tile([1.0, 1.0, 1.6, 1.6, 1.6, 1.0, 0.8, 0.5], 15), name)
    assert degrees(Optimizer(), noisy.case(95, ALARM))["first_moment_grew"] < 0.2
    whole = MadeRun(seed=seed).times(2.0, "first_moment_norm", first=86)
    assert degrees(Optimizer(), whole.case(95, ALARM))["first_moment_grew"] > 0.9


@SEEDS
def test_a_second_moment_that_fell(seed: int) -> None:
    run = MadeRun(seed=seed).times(1e-3, "second_moment_rms/embed", first=89)
    told = found(Optimizer(), run.case(95, ALARM))["second_moment_fell"]
    assert told.degree == 1.0
    assert "second_moment_rms/embed stood at " in told.statement
    gone = MadeRun(seed=seed).put("second_moment_rms", 0.0, 90)
    assert degrees(Optimizer(), gone.case(95, ALARM))["second_moment_fell"] == 1.0
    series = [name for name in run.rows if name.startswith("second_moment_rms/")]
    young = MadeRun(seed=seed).times(0.97 ** np.arange(120), *series)
    told = degrees(Optimizer(), young.case(95, ALARM))
    assert told["second_moment_fell"] < 0.5, "it was falling all along"


def test_moments_that_are_not_finite() -> None:
    run = MadeRun().put("num_nonfinite_moments", 2.0, 89)
    told = found(Optimizer(), run.case(95, ALARM))["moments_nonfinite"]
    assert told.degree == 1.0
    assert "of 2 parameter(s) are NaN or Inf at step 1089" in told.statement
    sound = found(Optimizer(), MadeRun().case(95, ALARM))["moments_nonfinite"]
    assert [one.step for one in sound.readings] == [1095]
    seldom = MadeRun().every(100, "num_nonfinite_moments")
    assert "moments_nonfinite" not in degrees(Optimizer(), seldom.case(95, ALARM))


def test_a_count_of_updates_that_fell() -> None:
    run = MadeRun().put("num_updates", np.arange(1, 33), 88)
    told = found(Optimizer(), run.case(95, ALARM))["update_count_fell"]
    assert told.degree == 1.0
    assert told.statement.endswith("fell from 88 to 1 at step 1088")
    assert [one.value for one in told.readings] == [88, 1]


@SEEDS
def test_an_update_like_that_of_a_fresh_adam(seed: int) -> None:
    facts = {"num_parameters": COUNT}
    run = MadeRun(seed=seed).times(4.4, "update_norm", first=89, stop=90)
    told = found(Optimizer(), run.case(95, ALARM, facts=facts))["update_like_fresh"]
    assert told.degree > 0.8
    assert "of step 1089 was " in told.statement
    for factor in (1.0, 2.0, 9.0, 1e4):
        run = MadeRun(seed=seed).times(factor, "update_norm", first=89, stop=90)
        told = degrees(Optimizer(), run.case(95, ALARM, facts=facts))
        assert told["update_like_fresh"] == 0.0, factor
    assert "update_like_fresh" not in degrees(Optimizer(), run.case(95, ALARM))


def test_the_run_s_own_first_update_tells_what_a_fresh_one_is() -> None:
    run = MadeRun().put("update_norm", 0.264, 0, 1).times(4.4, "update_norm", first=90, stop=91)
    run.first = 1
    assert degrees(Optimizer(), run.case(95, ALARM))["update_like_fresh"] > 0.8
    large = MadeRun().put("update_norm", 0.06)
    large.first = 1
    assert "update_like_fresh" not in degrees(Optimizer(), large.case(95, ALARM)), (
        "Lion's are alike"
    )


def test_gradients_near_epsilon() -> None:
    for level, degree in ((1.0, 1.0), (10.0, 0.5), (100.0, 0.0)):
        run = MadeRun().put("grad_rms_to_eps/blocks.0.attn", level)
        told = found(Optimizer(), run.case(95, ALARM))["gradient_near_epsilon"]
        assert told.degree == pytest.approx(degree)
        assert "grad_rms_to_eps/blocks.0.attn stood at " in told.statement
    frozen = MadeRun().put("grad_rms_to_eps/blocks.0.attn", 0.0)
    assert degrees(Optimizer(), frozen.case(95, ALARM))["gradient_near_epsilon"] == 0.0


@SEEDS
def test_updates_that_collapsed(seed: int) -> None:
    late = [("loss", 140)]
    run = MadeRun(160, seed=seed).times(0.15, "update_ratio/blocks.0.attn", first=110)
    told = found(Optimizer(), run.case(145, late))["update_collapsed"]
    assert told.degree == 1.0
    assert "update_ratio/blocks.0.attn, per unit of the learning rate, was 0.1" in told.statement
    lowered = MadeRun(160, seed=seed).times(0.1, "lr", "update_ratio", first=110)
    lowered.times(0.1, *[f"update_ratio/{part}" for part in PARTS], first=110)
    assert degrees(Optimizer(), lowered.case(145, late))["update_collapsed"] == 0.0
    young = MadeRun(160, seed=seed)
    young.times(np.exp(-np.arange(160) / 40), "update_ratio/head")
    assert degrees(Optimizer(), young.case(145, late))["update_collapsed"] < 0.2
    run.first = 0
    assert degrees(Optimizer(), run.case(145, late))["update_collapsed"] == 1.0
    early = run.case(100, [("loss", 95)])
    assert "update_collapsed" not in degrees(Optimizer(), early), "a young run"
    skips = MadeRun(160, seed=seed).skipped(*range(120, 130))
    assert degrees(Optimizer(), skips.case(145, late))["update_collapsed"] == 0.0


def test_nothing_can_be_looked_at() -> None:
    assert degrees(Optimizer(), MadeRun(0).case(-1, [("loss", 3)])) == {}
    assert degrees(Optimizer(), MadeRun(400).printed().case(310, [("loss", 300)])) == {}
    told = degrees(Optimizer(), MadeRun(4).case(3, [("loss", 3)]))
    assert set(told) <= {"update_count_fell", "moments_nonfinite"}
    run = MadeRun().put("rms_t", math.nan).without(*[f"rms_t/{part}" for part in PARTS])
    assert "rms_t_rose" not in degrees(Optimizer(), run.case(95, ALARM))
