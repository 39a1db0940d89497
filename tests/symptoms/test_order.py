"""Which of loss, gradient and update moved first."""

import math

import numpy as np
import pytest

from foreshock.symptoms.order import Order
from tests.symptoms.cases import MadeRun, degrees, found, healthy_with_an_outlier

SEEDS = pytest.mark.parametrize("seed", range(6))
FIRST = ("loss_moved_first", "gradient_moved_first", "update_moved_first")


def firsts(case) -> tuple[float | None, ...]:
    told = degrees(Order(), case)
    return tuple(told.get(name) for name in FIRST)


@SEEDS
def test_a_bad_batch_moves_the_loss_first(seed: int) -> None:
    run = MadeRun(seed=seed).at(90, loss=5.0, grad_norm=4.0).at(91, loss=4.0, update_ratio=9e-3)
    case = run.seen(91)
    assert firsts(case) == (1.0, 0.0, 0.0)
    told = found(Order(), case)
    assert [told[f"{one}_moved"].degree for one in ("loss", "gradient", "update")] == [1, 1, 1]
    assert "the loss was first: the loss moved at step 1090, " in told["loss_moved_first"].statement
    read = [(one.series, one.step) for one in told["loss_moved_first"].readings]
    assert read == [
        ("loss/global", 1090),
        ("grad_norm/global", 1090),
        ("update_ratio/global", 1091),
    ]


@SEEDS
def test_in_the_same_step_the_loss_comes_before_its_gradient_and_that_before_its_update(
    seed: int,
) -> None:
    run = MadeRun(seed=seed).at(90, loss=5.0, grad_norm=4.0, update_ratio=9e-3)
    assert firsts(run.seen(90)) == (1.0, 0.0, 0.0)
    run = MadeRun(seed=seed).at(90, grad_norm=4.0, update_ratio=0.02).at(91, loss=5.0)
    assert firsts(run.seen(91)) == (0.0, 1.0, 0.0)


@SEEDS
def test_damaged_moments_move_the_update_first(seed: int) -> None:
    run = MadeRun(seed=seed).at(90, update_ratio=0.04).at(91, loss=7.0, grad_norm=6.0)
    assert firsts(run.seen(91)) == (0.0, 0.0, 1.0)


@SEEDS
def test_a_gradient_that_grows_for_steps_before_the_loss(seed: int) -> None:
    """BLOOM-176B, iterations 31214 to 31219, as its published log has them."""
    run = MadeRun(seed=seed).put("grad_norm", 0.242 + 0.01 * np.sin(np.arange(120)))
    run.put("loss", 2.2 + 0.01 * np.cos(np.arange(120)))
    run.put("grad_norm", [0.242, 0.947, 2.39, 15.9, 145, 960], 90, 96)
    run.put("loss", [2.199, 2.220, 2.595, 2.242, 2.345, 5.098], 90, 96)
    assert firsts(run.without("update_ratio").seen(95)) == (0.0, 1.0, None)


@SEEDS
def test_a_raised_update_that_no_rule_alarms_on_is_found_some_steps_before_the_onset(
    seed: int,
) -> None:
    run = MadeRun(seed=seed).times(4.5, "update_ratio", first=80).times(2.0, "loss", first=90)
    case = run.case(95, [("loss", 90)])
    assert firsts(case) == (0.0, 0.0, 1.0)
    over = MadeRun(seed=seed).times(9.0, "update_ratio", first=80, stop=90)
    over.times(2.0, "loss", first=90)
    told = found(Order(), over.case(95, [("loss", 90)]))["update_moved"]
    assert told.degree == 1.0
    assert told.statement.endswith(" times its median at step 1080")
    lone = MadeRun(seed=seed).times(4.5, "update_ratio", first=80, stop=82)
    lone.times(2.0, "loss", first=90)
    assert firsts(lone.case(95, [("loss", 90)]))[2] == 0.0, "it was back by then"


@SEEDS
def test_near_the_thresholds_degrees_lie_between(seed: int) -> None:
    run = MadeRun(seed=seed).times(3.0, "update_ratio", first=90)
    told = degrees(Order(), run.case(93, [("update_ratio", 90)]))
    assert 0.3 < told["update_moved"] < 0.9
    assert 0.5 <= told["update_moved_first"] <= 1
    assert told["loss_moved"] == 0.0
    moved = [
        degrees(Order(), MadeRun(seed=seed).at(90, update_ratio=2e-3 * one).case(90, [("lr", 90)]))
        for one in np.linspace(1.5, 5, 20)
    ]
    jumps = np.diff([one["update_moved"] for one in moved])
    assert jumps.min() >= -1e-6
    assert jumps.max() < 0.25


def test_what_is_not_finite_has_moved() -> None:
    run = MadeRun().at(90, loss=math.nan, grad_norm=math.nan, update_ratio=math.nan)
    case = run.seen(90)
    assert firsts(case) == (1.0, 0.0, 0.0)
    assert "NaN or Inf at step 1090" in found(Order(), case)["loss_moved"].statement
    run = MadeRun().at(90, grad_norm=math.inf, update_ratio=math.nan).at(91, loss=math.nan)
    assert firsts(run.seen(91)) == (0.0, 1.0, 0.0)


def test_between_two_rows_of_a_log_no_order_is_told() -> None:
    run = MadeRun(400).at(300, loss=6.0, grad_norm=9.0).printed()
    assert firsts(run.case(300, [("loss", 300)])) == (None, None, None)
    run = MadeRun(400).at(290, grad_norm=9.0).at(300, loss=6.0, grad_norm=9.0).printed()
    assert firsts(run.case(300, [("grad_norm", 290)])) == (0.0, 1.0, None)


def test_an_update_that_is_read_too_seldom_is_not_said_to_be_later() -> None:
    run = MadeRun().every(10, "update_ratio").at(95, loss=5.0, grad_norm=4.0)
    run.times(9.0, "update_ratio", first=95)
    assert firsts(run.case(105, [("loss", 95)])) == (None, 0.0, None)


def test_nothing_is_told_where_nothing_can_be_looked_at() -> None:
    assert degrees(Order(), MadeRun(4).at(3, loss=9.0).case(3, [("loss", 3)])) == {}
    assert degrees(Order(), MadeRun(0).case(-1, [("loss", 3)])) == {}
    assert degrees(Order(), MadeRun().only("lr").case(90, [("loss", 90)])) == {}
    told = degrees(Order(), MadeRun().only("loss").at(90, loss=9.0).seen(90))
    assert told == {"loss_moved": 1.0}


@SEEDS
def test_a_hard_batch_in_a_healthy_run(seed: int) -> None:
    told = degrees(Order(), healthy_with_an_outlier(seed).seen(95))
    assert told["update_moved"] == 0.0
    assert told["update_moved_first"] == 0.0


@SEEDS
def test_a_run_without_trouble_has_not_moved(seed: int) -> None:
    told = degrees(Order(), MadeRun(seed=seed).case(99, [("loss_spread", 95)]))
    assert set(told) == {"loss_moved", "gradient_moved", "update_moved"}
    assert max(told.values()) <= 0.1
