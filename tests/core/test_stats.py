"""The rolling median against NumPy."""

import math
import warnings
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.stats import RollingMedian

FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 1.0, -1.0, 5e-324, -5e-324, 1e-310, 1.7e308, -1.7e308]),
    st.integers(-3, 3).map(float),
)


def reference(values: list[float]) -> tuple[float, float]:
    """Median and MAD by sorting; halves first, where a sum could overflow."""

    def middle(sample: list[float]) -> float:
        ordered, half = sorted(sample), len(sample) // 2
        if len(sample) % 2:
            return ordered[half]
        low, high = ordered[half - 1], ordered[half]
        if abs(low) > 1e300 or abs(high) > 1e300:
            return low / 2 + high / 2
        return float(np.median(ordered))

    centre = middle(values)
    return centre, middle([abs(value - centre) for value in values])


@given(st.integers(1, 9), st.lists(FINITE, min_size=1, max_size=40))
def test_it_is_the_median_and_mad_of_the_last_values(window: int, values: list[float]) -> None:
    recent, kept = RollingMedian(window), deque[float](maxlen=window)
    for value in values:
        recent.add(value)
        kept.append(value)
        assert (recent.median(), recent.mad()) == reference(list(kept))
        assert recent.values == list(kept)
        assert len(recent) == len(kept)


@given(st.lists(st.floats(-1e150, 1e150), min_size=1, max_size=40))
def test_it_agrees_with_numpy(values: list[float]) -> None:
    recent = RollingMedian(len(values), values)
    centre = np.median(values)
    assert recent.median() == centre
    assert recent.mad() == np.median(np.abs(np.asarray(values) - centre))


def test_huge_values_have_a_median_where_their_sum_has_none() -> None:
    recent = RollingMedian(2, [1.7e308, 1.6e308])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.median([1.7e308, 1.6e308]) == math.inf
    assert recent.median() == pytest.approx(1.65e308)
    assert recent.mad() == pytest.approx(5e306)


@given(st.integers(1, 9), st.lists(FINITE, max_size=20), st.lists(FINITE, max_size=20))
def test_a_rebuilt_window_goes_on_identically(
    window: int, before: list[float], after: list[float]
) -> None:
    one = RollingMedian(window)
    for value in before:
        one.add(value)
    two = RollingMedian.from_tree(one.to_tree())
    for value in after:
        one.add(value)
        two.add(value)
        assert (one.median(), one.mad(), one.values) == (two.median(), two.mad(), two.values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_value_is_refused_and_leaves_no_trace(value: float) -> None:
    recent = RollingMedian(3, [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="finite values only"):
        recent.add(value)
    assert (recent.values, recent.median()) == ([1.0, 2.0, 3.0], 2.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nor_can_one_come_in_through_the_constructor(value: float) -> None:
    with pytest.raises(ValueError, match="finite values only"):
        RollingMedian(3, [1.0, value])


def test_an_empty_window_knows_nothing() -> None:
    assert math.isnan(RollingMedian(3).median())
    assert math.isnan(RollingMedian(3).mad())


def test_a_window_of_no_values_is_refused() -> None:
    with pytest.raises(ValueError, match="window is 0"):
        RollingMedian(0)
