"""How an episode goes on."""

import math

import numpy as np
import pytest

from foreshock.symptoms.aftermath import Aftermath
from tests.symptoms.cases import MadeRun, alarm, degrees, found, healthy_with_an_outlier

SEEDS = pytest.mark.parametrize("seed", range(5))


@SEEDS
@pytest.mark.parametrize("back", [1, 5, 15])
def test_one_step_out_of_range_is_brief(seed: int, back: int) -> None:
    case = healthy_with_an_outlier(seed).seen(90 + back)
    told = found(Aftermath(), case)
    assert told["brief"].degree > 0.9
    assert told["lasting"].degree < 0.1
    assert told["brief"].statement == "1 alarmed step(s); in range again since step 1091"
    assert "recurs_every_step" not in told or told["recurs_every_step"].degree == 0.0


@SEEDS
def test_the_first_alarm_may_become_either(seed: int) -> None:
    told = degrees(Aftermath(), healthy_with_an_outlier(seed).seen(90))
    assert "brief" not in told
    assert told["lasting"] == 0.5


@SEEDS
def test_many_steps_out_of_range_are_lasting(seed: int) -> None:
    run = MadeRun(seed=seed).times(2.0, "loss", first=90)
    told = degrees(Aftermath(), run.seen(99))
    assert (told["brief"], told["lasting"], told["recurs_every_step"]) == (0.0, 1.0, 1.0)


def test_a_rule_that_has_fallen_silent_does_not_make_a_loss_be_back() -> None:
    run = MadeRun().times(2.0, "loss", first=90)
    told = degrees(Aftermath(), run.case(110, [("loss", 90), ("loss", 91)]))
    assert (told["brief"], told["lasting"]) == (0.0, 1.0)
    run.put("loss", math.nan, 92)
    told = degrees(Aftermath(), run.case(110, [("loss", 90), ("loss", 91)]))
    assert told.get("brief") in (None, 1.0)
    run.put("loss", math.inf, 92)
    told = degrees(Aftermath(), run.case(110, [("loss", 90), ("loss", 91)]))
    assert told["lasting"] == 1.0


@SEEDS
def test_three_alarmed_steps_are_brief_by_half(seed: int) -> None:
    run = MadeRun(seed=seed).times(2.0, "loss", first=90, stop=93)
    told = degrees(Aftermath(), run.case(99, [("loss", row) for row in (90, 91, 92)]))
    assert 0.4 < told["brief"] <= 0.5
    told = degrees(Aftermath(), run.case(99, [("loss", row) for row in (90, 91, 92, 93)]))
    assert told["brief"] == 0.0


@SEEDS
def test_recovering(seed: int) -> None:
    run = MadeRun(seed=seed)
    run.put("loss", run["loss"][90:] + 4 * 0.8 ** np.arange(30), 90)
    assert degrees(Aftermath(), run.seen(98))["recovering"] > 0.9
    assert degrees(Aftermath(), run.seen(93))["recovering"] < 0.6
    run = MadeRun(seed=seed).put("loss", 5 + 0.5 * np.arange(30), 90)
    assert "recovering" not in degrees(Aftermath(), run.seen(98)), "the peak is still to come"
    run = MadeRun(seed=seed).times(2.0, "loss", first=90).at(92, loss=5.5)
    assert degrees(Aftermath(), run.seen(98))["recovering"] == 0.0


def test_infinite_and_back() -> None:
    run = MadeRun().at(90, loss=math.inf)
    assert degrees(Aftermath(), run.seen(95))["recovering"] == 1.0
    run.put("loss", math.nan, 90)
    assert degrees(Aftermath(), run.seen(95))["recovering"] == 0.0


@SEEDS
@pytest.mark.parametrize("every", [40, 77])
def test_spikes_at_even_distances(seed: int, every: int) -> None:
    run = MadeRun(600, seed=seed)
    rows = list(range(100, 600, every))
    for row in rows:
        run.times(2.0, "loss", first=row, stop=row + 3)
    case = run.case(rows[-1] + 2, [("loss", rows[-1])])
    told = found(Aftermath(), case)["recurs_periodically"]
    assert told.degree == 1.0
    assert f"{every} to {every} steps apart" in told.statement
    run = MadeRun(900, seed=seed)
    rows = [90, 120, 310, 350, 600]
    for row in rows:
        run.times(2.0, "loss", first=row, stop=row + 3)
    told = degrees(Aftermath(), run.case(602, [("loss", 600)]))
    assert told["recurs_periodically"] == 0.0


@SEEDS
def test_noise_has_no_period(seed: int) -> None:
    told = degrees(Aftermath(), MadeRun(1500, seed=seed).case(1499, [("grad_norm", 1480)]))
    assert told["recurs_periodically"] == 0.0


def test_harm_that_a_probe_found() -> None:
    case = healthy_with_an_outlier().seen(95, facts={"harm": "retrieval fell."})
    told = found(Aftermath(), case)["probe_found_harm"]
    assert (told.degree, told.statement) == (1.0, "a probe found the model hurt: retrieval fell")
    case = healthy_with_an_outlier().seen(95, facts={"harm": ""})
    assert "probe_found_harm" not in degrees(Aftermath(), case)


def test_what_is_not_read_any_more_is_not_said_to_be_back() -> None:
    run = MadeRun().at(90, loss=5.0)
    case = run.case(95, [alarm("other", 1090)])
    told = degrees(Aftermath(), case)
    assert "brief" not in told
    assert "lasting" not in told
    assert "recurs_periodically" not in told
    assert degrees(Aftermath(), MadeRun(0).case(-1, [("loss", 3), ("loss", 5)]))["lasting"] == 0.75
    assert degrees(Aftermath(), MadeRun().case(80, [("loss", 90)])) == {}
