"""Whether a value is NaN or Inf, and where it was born."""

import dataclasses
import math

import pytest

from foreshock.symptoms.nonfinite import NonFinite
from tests.symptoms.cases import MadeRun, alarm, degrees, found, healthy_with_an_outlier

BORN = ("forward", "backward", "weights")


def born(case) -> str | None:
    told = degrees(NonFinite(), case)
    assert told["nonfinite"] == 1.0
    yes = [place for place in BORN if told.get(f"born_in_{place}") == 1.0]
    assert len(yes) == (1 if "born_in_forward" in told else 0)
    return yes[0] if yes else None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_in_the_forward(value: float) -> None:
    case = MadeRun().at(90, loss=value, grad_norm=value).skipped(90).seen(90)
    assert born(case) == "forward"
    told = found(NonFinite(), case)["born_in_forward"]
    assert told.statement == f"loss/global is {value} at step 1090, and the step before it was " + (
        "finite: born in the forward"
    )
    assert [one.series for one in told.readings] == ["loss/global"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_in_the_backward(value: float) -> None:
    run = MadeRun().at(90, grad_norm=value)
    assert born(run.seen(90)) == "backward"
    run.at(91, loss=math.nan, grad_norm=math.nan)
    assert born(run.seen(91)) == "backward", "what comes of it later does not count"


def test_in_the_weights() -> None:
    run = MadeRun().at(90, update_ratio=math.nan, param_norm=math.nan)
    run.at(91, loss=math.nan, grad_norm=math.nan)
    assert born(run.seen(90)) == "weights"
    assert born(run.seen(91)) == "weights"
    part = MadeRun().put("param_norm/head", math.nan, 90)
    case = part.case(92, [alarm("param_norm/head", 1090, value=math.nan)])
    assert born(case) == "weights"
    late = MadeRun().every(10, "param_norm").at(95, loss=math.nan, grad_norm=math.nan)
    late.put("param_norm", math.nan, 100)
    assert born(late.seen(100)) == "forward", "weights that are read later broke later"


def test_where_rows_are_apart_a_loss_and_gradient_that_break_together_tell_no_order() -> None:
    run = MadeRun(400).at(300, loss=math.nan, grad_norm=math.nan).printed()
    assert born(run.case(300, [alarm("loss", 1300, value=math.nan)])) is None
    run = MadeRun(400).at(300, grad_norm=math.inf).printed()
    assert born(run.case(300, [alarm("grad_norm", 1300, value=math.inf)])) == "backward"


def test_a_nan_that_stands_for_no_reading_is_none() -> None:
    """The table of a log is of fp64, with NaN where a column has no value."""
    run = MadeRun().at(90, loss=5.0)
    run.put("update_ratio", math.nan).put("grad_norm", math.nan, 91)
    case = dataclasses.replace(run.case(95, [("loss", 90)]), timeline=run.timeline(95, float))
    assert degrees(NonFinite(), case) == {"nonfinite": 0.0}
    run.at(91, loss=math.nan)
    alarms = [alarm("loss", 1091, value=math.nan)]
    case = dataclasses.replace(run.case(95, alarms), timeline=run.timeline(95, float))
    assert degrees(NonFinite(), case)["born_in_forward"] == 1.0


def test_the_daily_work_of_a_loss_scaler_is_not_counted() -> None:
    run = MadeRun().at(90, loss=5.0).at(92, grad_norm=math.inf).skipped(92)
    assert degrees(NonFinite(), run.case(95, [("loss", 90)])) == {"nonfinite": 0.0}
    case = run.case(95, [("loss", 90), alarm("grad_norm", 1092, value=math.inf)])
    assert born(case) == "backward"


def test_an_alarm_elsewhere_tells_that_something_is_broken_but_not_where() -> None:
    case = MadeRun().case(95, [alarm("activation_norm/final", 1090, value=math.nan)])
    assert degrees(NonFinite(), case) == {"nonfinite": 1.0}


@pytest.mark.parametrize("seed", range(4))
def test_finite_values(seed: int) -> None:
    case = healthy_with_an_outlier(seed).seen(95)
    assert degrees(NonFinite(), case) == {"nonfinite": 0.0}


def test_without_readings_nothing_is_told() -> None:
    assert degrees(NonFinite(), MadeRun(0).case(-1, [("loss", 3)])) == {}
    assert degrees(NonFinite(), MadeRun().only("lr").case(90, [("loss", 80)])) == {}
    assert degrees(NonFinite(), MadeRun().case(70, [("loss", 90)])) == {}
