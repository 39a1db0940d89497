"""Independent outliers confirm as rarely as is asked for, by simulation."""

import numpy as np
import pytest

from foreshock.core.confirmation import (
    USUAL_RATE,
    Outliers,
    false_confirmations,
    outlier_rate,
    steps_to_confirm,
)

STEPS = 2_000_000


def simulated(rate: float, within: int, needed: int) -> float:
    """Steps, as a share of all, that are alarmed and have so many among the last `within`."""
    alarmed = np.random.default_rng(7).random(STEPS) < rate
    total = np.cumsum(np.concatenate([np.zeros(within, dtype=int), alarmed]))
    recent = total[within:] - total[:-within]
    return float((alarmed & (recent >= needed)).mean())


@pytest.mark.parametrize("within", [1, 5, 10, 40])
@pytest.mark.parametrize("rate", [0.005, 0.03, 1 / 12, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("needed", [1, 2, 3, 6, 12])
def test_how_often_independent_outliers_confirm(rate, within, needed) -> None:
    told = false_confirmations(needed, rate, within)
    noise = 5 * np.sqrt((told + 1e-6) * within / STEPS)  # confirmations come in clusters
    assert simulated(rate, within, needed) == pytest.approx(told, abs=noise)


@pytest.mark.parametrize("within", [5, 10, 40])
@pytest.mark.parametrize("rate", [0.0, 0.005, 0.03, 1 / 12, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("usually", [1, 2, 3, 5])
def test_many_outliers_confirm_no_more_often_than_few(rate, within, usually) -> None:
    accepted = false_confirmations(usually, USUAL_RATE, within)
    needed = steps_to_confirm(usually, rate, within)
    assert needed >= usually
    assert needed >= within or false_confirmations(needed, rate, within) <= accepted
    assert needed == usually or false_confirmations(needed - 1, rate, within) > accepted


def test_trouble_at_every_step_is_always_confirmed() -> None:
    for usually, within in ((1, 1), (3, 3), (10, 10), (3, 10)):
        for rate in (0.0, 0.01, 0.5, 1.0):
            assert usually <= steps_to_confirm(usually, rate, within) <= within


def test_alarmed_steps_are_counted_in_runs_and_alone() -> None:
    seen = Outliers()
    for step in (3, 5, 6, 7, 8, 11):
        seen.add(step, ["a"] if step != 7 else ["a", "b"])
    assert seen.num_alarmed(7) == {"a": 3, "b": 1}
    assert seen.num_alarmed(1) == {"a": 6, "b": 1}
    assert seen.num_alarmed(8) == {"a": 2}
    assert seen.num_alarmed(12) == {}


def test_outliers_are_counted_over_2000_steps_and_come_back() -> None:
    seen = Outliers()
    assert seen.rate("a", 10) == USUAL_RATE
    seen.begin(11)
    assert seen.rate("a", 10) == USUAL_RATE
    for step in range(11, 4011):
        seen.begin(step)
        if step % 100 < 3:
            seen.add(step, {"a"} if step % 200 < 3 else {"b"})
    assert seen.rate("a", 4010) == outlier_rate(10, 2000)
    assert seen.rate("b", 4010) == outlier_rate(10, 2000)
    assert seen.rate("c", 4010) == outlier_rate(0, 2000)
    again = Outliers()
    again.load_tree(seen.to_tree())
    steps = (2020, 3900, 4010)
    assert [again.rate("a", step) for step in steps] == [seen.rate("a", step) for step in steps]
    assert len(seen.to_tree()["spans"]["a"]) < 20


def test_the_extremes() -> None:
    assert [steps_to_confirm(3, rate, 10) for rate in (0.0, USUAL_RATE, 1.0)] == [3, 3, 10]
    needs = [steps_to_confirm(3, rate, 10) for rate in np.linspace(0, 1, 200)]
    assert needs == sorted(needs)
    rates = [outlier_rate(3, steps) for steps in range(3, 4000)]
    assert rates == sorted(rates, reverse=True)
    assert outlier_rate(10_000, 100_000) == pytest.approx(0.1, rel=1e-2)
