"""What the learning rate did."""

import numpy as np
import pytest

from foreshock.core.case import Intervention
from foreshock.symptoms.rate import Rate
from tests.symptoms.cases import MadeRun, degrees, found, healthy_with_an_outlier

SEEDS = pytest.mark.parametrize("seed", range(4))
ROWS = np.arange(120)
COSINE = 5e-4 * (1 + np.cos(np.pi * (ROWS + 300) / 800))
WARMUP = 1e-5 * (ROWS + 1)


def rate(schedule: np.ndarray, seed: int = 0) -> MadeRun:
    """A run whose updates follow its rate."""
    run = MadeRun(seed=seed).put("lr", schedule)
    return run.times(schedule / 1e-3, "update_ratio")


@SEEDS
@pytest.mark.parametrize("factor", [3.0, 10.0])
def test_a_rate_that_jumped(seed: int, factor: float) -> None:
    schedule = np.where(ROWS >= 90, factor, 1.0) * 1e-3
    case = rate(schedule, seed).case(95, [("loss", 92)])
    told = found(Rate(), case)
    assert told["rate_jumped"].degree == 1.0
    assert f"rose {factor:g} times in one step" in told["rate_jumped"].statement
    assert told["update_follows_rate"].degree > 0.8
    assert told["rate_rising"].degree == 0.0
    assert told["rate_off_schedule"].degree == pytest.approx(0.7)
    far = rate(schedule, seed).case(112, [("loss", 110)])
    assert degrees(Rate(), far)["rate_jumped"] == pytest.approx(0.75)


def test_small_jumps_count_less() -> None:
    told = [
        degrees(Rate(), rate(np.where(ROWS >= 90, factor, 1) * 1e-3).case(95, [("loss", 92)]))
        for factor in (1.3, 1.6, 1.8, 2.1)
    ]
    jumped = [one["rate_jumped"] for one in told]
    assert jumped[0] == 0.0
    assert 0.4 < jumped[1] < jumped[2] < 1.0
    assert jumped[3] == 1.0


@SEEDS
def test_ordinary_schedules(seed: int) -> None:
    steps = np.where(ROWS >= 60, 1.0, 1.0) * 1e-3
    for schedule in (COSINE, WARMUP, steps, 1e-3 / np.sqrt(ROWS + 10), 1e-6 * 1.08**ROWS):
        told = degrees(Rate(), rate(schedule, seed).case(95, [("loss", 90)]))
        assert told["rate_jumped"] == 0.0
        assert told["rate_off_schedule"] == 0.0
    assert degrees(Rate(), rate(WARMUP).case(95, [("loss", 90)]))["rate_rising"] == 1.0
    assert degrees(Rate(), rate(COSINE).case(95, [("loss", 90)]))["rate_rising"] == 0.0
    zero = 1e-5 * np.clip(ROWS - 45, 0, None)
    assert degrees(Rate(), rate(zero).case(95, [("loss", 90)]))["rate_rising"] == 1.0
    noisy = COSINE * np.where(ROWS % 2, 1.02, 1.0)
    assert degrees(Rate(), rate(noisy).case(95, [("loss", 90)]))["rate_off_schedule"] == 0.0
    ends = np.minimum(WARMUP, 8e-4)
    told = degrees(Rate(), rate(ends).case(105, [("loss", 100)]))
    assert told["rate_off_schedule"] == 0.0, "a warm-up that ends"
    assert told["rate_rising"] < 0.5


@SEEDS
@pytest.mark.parametrize("back", [1e-6, 1e-3, 2.5e-4])
def test_a_schedule_that_was_lost_at_a_start(seed: int, back: float) -> None:
    """Back to the start of a warm-up, to the base rate, or to a rate long gone by."""
    schedule = np.where(ROWS >= 85, back * (1 + 0.01 * (ROWS - 85)), COSINE)
    run = rate(schedule, seed)
    told = found(Rate(), run.case(95, [("loss", 90)], starts=[0, 1084]))["rate_off_schedule"]
    assert told.degree == 1.0
    assert "at step 1085, where its course led to 0.000" in told.statement
    assert told.statement.endswith("at a start of the process")
    other = degrees(Rate(), run.case(95, [("loss", 90)], starts=[0, 1060]))
    assert other["rate_off_schedule"] == pytest.approx(0.7)


def test_a_rate_that_stands_still_where_it_fell() -> None:
    run = rate(np.where(ROWS >= 80, COSINE[80], COSINE))
    told = found(Rate(), run.case(95, [("loss", 90)], starts=[0, 1080]))["rate_off_schedule"]
    assert told.degree == 1.0
    assert "stands still at " in told.statement
    assert degrees(Rate(), run.case(95, [("loss", 90)]))["rate_off_schedule"] == 0.5
    assert degrees(Rate(), run.case(84, [("loss", 83)]))["rate_off_schedule"] == 0.0, "not yet"
    stairs = rate(np.where(ROWS >= 80, COSINE[80], COSINE[ROWS // 2 * 2]))
    told = degrees(Rate(), stairs.case(95, [("loss", 90)]))
    assert told["rate_off_schedule"] == 0.0, "it had stood still before"


def test_a_rate_that_an_intervention_lowered_is_where_it_was_put() -> None:
    run = rate(np.where(ROWS >= 85, 0.3, 1.0) * 1e-3)
    done = [Intervention(step=1084, action="scale_lr", helped=None)]
    assert degrees(Rate(), run.case(95, [("loss", 90)]))["rate_off_schedule"] > 0.6
    told = degrees(Rate(), run.case(95, [("loss", 90)], interventions=done))
    assert told["rate_off_schedule"] == 0.0


@SEEDS
def test_an_update_that_moved_at_an_unchanged_rate(seed: int) -> None:
    run = MadeRun(seed=seed).times(4.0, "update_ratio", first=90)
    assert degrees(Rate(), run.case(95, [("loss", 90)]))["update_follows_rate"] == 0.0
    fixed = MadeRun(seed=seed).times(3.0, "lr", first=90)
    assert degrees(Rate(), fixed.case(95, [("loss", 90)]))["update_follows_rate"] == 0.0
    healthy = degrees(Rate(), healthy_with_an_outlier(seed).seen(95))
    assert "update_follows_rate" not in healthy


@SEEDS
def test_a_gradient_that_grew_before(seed: int) -> None:
    run = MadeRun(seed=seed).times(1.04 ** np.clip(ROWS - 40, 0, None), "grad_norm")
    told = found(Rate(), run.case(95, [("loss", 90)]))["gradient_grew_before"]
    assert told.degree > 0.8
    assert len(told.readings) == 2
    healthy = degrees(Rate(), healthy_with_an_outlier(seed).seen(95))
    assert healthy["gradient_grew_before"] == 0.0
    assert {name: one for name, one in healthy.items() if one} == {}


def test_a_printed_log() -> None:
    run = MadeRun(900).times(5.0, "lr", first=600).printed()
    told = degrees(Rate(), run.case(620, [("loss", 610)]))
    assert told["rate_jumped"] == 1.0
    assert told["rate_off_schedule"] == pytest.approx(0.7)
    assert told["gradient_grew_before"] == 0.0


def test_nothing_can_be_looked_at() -> None:
    assert degrees(Rate(), MadeRun(0).case(-1, [("loss", 3)])) == {}
    assert degrees(Rate(), MadeRun(4).case(3, [("loss", 3)])) == {}
    bare = MadeRun().only("loss")
    assert degrees(Rate(), bare.case(95, [("loss", 90)])) == {}
    assert "gradient_grew_before" not in degrees(Rate(), MadeRun(24).case(23, [("loss", 22)]))
