"""Quantiles of Student's t against tables and integration, and the studentised bootstrap."""

import math

import numpy as np
import pytest

from foreshock.core.student import student_quantile, student_tail, studentised_quantiles

TABLE = [  # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2
    (0.001, 1, 318.309),
    (0.001, 2, 22.327),
    (0.001, 5, 5.894),
    (0.001, 11, 4.025),
    (0.001, 30, 3.385),
    (0.025, 1, 12.706),
    (0.05, 100, 1.660),
]


@pytest.mark.parametrize(("tail", "freedom", "value"), TABLE)
def test_against_the_table(tail: float, freedom: int, value: float) -> None:
    assert student_quantile(tail, freedom) == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 31, 200])
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, 4.0, 9.0])
def test_against_integration(freedom: int, value: float) -> None:
    front = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    front = math.exp(front) / math.sqrt(freedom * math.pi)
    grid = np.linspace(0.0, value, 200_001)
    density = front * (1 + grid**2 / freedom) ** (-(freedom + 1) / 2)
    expected = 0.5 - float(np.trapezoid(density, grid))
    assert student_tail(value, freedom) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("tail", [1e-7, 1e-4, 0.01, 0.3, 0.5])
@pytest.mark.parametrize("freedom", [1, 2, 4, 12, 1000])
def test_the_quantile_undoes_the_tail(tail: float, freedom: int) -> None:
    assert student_tail(student_quantile(tail, freedom), freedom) == pytest.approx(tail, rel=1e-6)


def test_what_is_out_of_range_is_refused() -> None:
    for tail, freedom in ((0.0, 3), (0.6, 3), (0.1, 0)):
        with pytest.raises(ValueError, match="they must be"):
            student_quantile(tail, freedom)


def test_resamples_against_a_slow_loop() -> None:
    sample = np.random.default_rng(1).gamma(2.0, 1.0, 24)
    rng = np.random.default_rng(7)
    seen = []
    for _ in range(15_000):
        drawn = rng.choice(sample, len(sample))
        error = drawn.std(ddof=1) / math.sqrt(len(sample))
        seen.append((drawn.mean() - sample.mean()) / error)
    low, high = studentised_quantiles(sample, 0.005, seed=0)
    assert low == pytest.approx(np.quantile(seen, 0.005), rel=0.2)
    assert high == pytest.approx(np.quantile(seen, 0.995), rel=0.2)
    assert -low > 1.3 * high  # the skew, which Student's t does not see


def test_resampling_is_deterministic_and_leaves_the_global_generators() -> None:
    sample = np.arange(12.0)
    state = np.random.get_state()[1].tolist()
    assert studentised_quantiles(sample, 1e-3, 3) == studentised_quantiles(sample, 1e-3, 3)
    assert studentised_quantiles(sample, 1e-3, 3) != studentised_quantiles(sample, 1e-3, 4)
    assert np.random.get_state()[1].tolist() == state


def test_resamples_of_one_value_have_no_error_and_are_no_error() -> None:
    low, high = studentised_quantiles(np.array([0.0, 1.0]), 0.01, seed=0)
    assert (low, high) == (-math.inf, math.inf)


def test_a_quantile_further_out_is_looked_for_in_more_resamples() -> None:
    sample = np.random.default_rng(1).normal(size=32)
    _, near = studentised_quantiles(sample, 1e-4, seed=0)
    _, far = studentised_quantiles(sample, 1e-5, seed=0)
    assert far > 1.05 * near  # equal ones would be the largest of too few
