"""The walk of the loss scale, and formats."""

import math

import numpy as np
import pytest

from foreshock.symptoms.scale import Scale
from tests.symptoms.cases import MadeRun, degrees, found, healthy_with_an_outlier

ALARM = [("grad_norm", 90)]
ROWS = np.arange(120)


def scaled(log2: np.ndarray, series: str = "loss_scale") -> MadeRun:
    return MadeRun().put(series, 2.0**log2 if series == "loss_scale" else log2)


@pytest.mark.parametrize("series", ["loss_scale", "loss_scale_log2"])
def test_a_scale_that_falls_at_every_step(series: str) -> None:
    run = scaled(16.0 - np.clip(ROWS - 89, 0, None), series).put("loss", math.nan, 90)
    told = found(Scale(), run.case(96, ALARM))
    assert told["scale_falling_every_step"].degree == 1.0
    assert told["scale_falling_every_step"].statement == (
        "the loss scale went from 2^16 to 2^9, halved 7 times in a row up to step 1096"
    )
    assert told["scale_fell_with_finite_loss"].degree == 0.0
    assert degrees(Scale(), run.case(91, ALARM))["scale_falling_every_step"] < 0.5


def test_a_scale_that_fell_while_the_loss_was_finite() -> None:
    """GLM-130B: it fell over 30 steps, then the loss exploded."""
    run = scaled(16.0 - np.clip((ROWS - 60) // 6, 0, 5)).put("loss", math.nan, 92)
    told = degrees(Scale(), run.case(93, ALARM))
    assert told["scale_fell_with_finite_loss"] == 1.0
    assert told["scale_falling_every_step"] == 0.0


def test_the_daily_round_of_a_scale() -> None:
    log2 = 16.0 + (ROWS >= 50) - (ROWS >= 70) + (ROWS >= 80) - (ROWS >= 92)
    told = degrees(Scale(), scaled(log2).at(90, loss=4.0).case(95, ALARM))
    assert told["scale_falling_every_step"] == 0.0
    assert told["scale_fell_with_finite_loss"] == 0.0
    assert told["runs_in_fp16"] == 1.0


def test_a_scale_of_zero() -> None:
    run = scaled(16.0 - 4.0 * np.clip(ROWS - 80, 0, None)).put("loss_scale", 0.0, 95)
    assert degrees(Scale(), run.case(99, ALARM))["scale_falling_every_step"] == 1.0
    never = MadeRun().put("loss_scale", 0.0)
    assert degrees(Scale(), never.case(99, ALARM))["scale_falling_every_step"] == 0.0


def test_rows_of_a_log_count_the_halvings_that_they_show() -> None:
    run = MadeRun(400).put("loss_scale", 2.0 ** (16.0 - np.clip(np.arange(400) - 300, 0, None)))
    run.kept[:] = np.arange(400) % 10 == 0
    told = degrees(Scale(), run.case(310, [("grad_norm", 300)]))
    assert told["scale_falling_every_step"] == 1.0


@pytest.mark.parametrize(
    ("facts", "fp16", "low"),
    [
        ({"precision": "fp16"}, 1.0, 1.0),
        ({"precision": "16-mixed"}, 1.0, 1.0),
        ({"precision": "bf16"}, 0.0, 1.0),
        ({"precision": "bf16-mixed"}, 0.0, 1.0),
        ({"precision": "torch.bfloat16"}, 0.0, 1.0),
        ({"precision": "fp8"}, 0.0, 1.0),
        ({"precision": "fp32"}, 0.0, 0.0),
        ({"precision": "32-true"}, 0.0, 0.0),
        ({"has_scaler": True}, 1.0, 1.0),
        ({"precision": "fp32", "has_scaler": False}, 0.0, 0.0),
        ({}, None, None),
        ({"precision": "of some kind"}, None, None),
        ({"precision": 7, "has_scaler": "?"}, None, None),
    ],
)
def test_formats(facts: dict[str, object], fp16: float | None, low: float | None) -> None:
    told = degrees(Scale(), MadeRun().case(95, ALARM, facts=facts))
    assert told.get("runs_in_fp16") == fp16
    assert told.get("runs_in_low_precision") == low


def test_a_scale_of_one_is_none() -> None:
    told = degrees(Scale(), scaled(0.0 * ROWS).case(95, ALARM, facts={"precision": "bf16"}))
    assert told["runs_in_fp16"] == 0.0


def test_updates_that_rounding_swallows() -> None:
    for level, degree in ((0.1, 0.0), (0.5, 0.5), (0.9, 1.0)):
        run = MadeRun().put("lost_update_share", level)
        told = found(Scale(), run.case(95, ALARM))["updates_lost_to_rounding"]
        assert told.degree == pytest.approx(degree)
        assert f"kept {level:.0%} of the weights" in told.statement


def test_nothing_can_be_looked_at() -> None:
    assert degrees(Scale(), MadeRun(0).case(-1, [("loss", 3)])) == {}
    assert degrees(Scale(), healthy_with_an_outlier().seen(95)) == {}
    early = scaled(16.0 + 0 * ROWS).case(80, ALARM)
    assert set(degrees(Scale(), early)) == {"runs_in_fp16", "runs_in_low_precision"}
