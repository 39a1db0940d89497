"""Medians and deviations against NumPy, one window and many."""

import math
import warnings
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.stats import (
    Recent,
    RollingMedian,
    printed_unit,
    row_medians,
    row_spreads,
    row_units,
    sorted_mad,
    sorted_median,
    windows_at,
)

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


BOUNDED = st.one_of(
    st.floats(-1e300, 1e300),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e300, -1e300, 5e-324]),
    st.integers(-3, 3).map(float),
    st.integers(-9, 99).map(lambda count: count / 100),
)


def bits(values) -> list[str]:
    """Each as text: it tells 0.0 from -0.0."""
    return [repr(float(value)) for value in values]


@given(st.integers(1, 12), st.data())
def test_rows_and_single_windows_have_the_same_bits(width: int, data: st.DataObject) -> None:
    row = st.lists(BOUNDED, min_size=width, max_size=width)
    rows = data.draw(st.lists(row, min_size=1, max_size=5))
    medians, mads = row_spreads(np.array(rows))
    assert bits(row_medians(np.array(rows))) == bits(medians)
    for place, values in enumerate(rows):
        centre = sorted_median(sorted(values))
        assert bits([centre]) == bits([medians[place]]) == bits([Recent(values).median()])
        assert bits([sorted_mad(sorted(values), centre)]) == bits([mads[place]])
    assert bits(row_units(np.array(rows))) == bits(map(printed_unit, rows))


def test_many_rows_are_worked_out_in_parts() -> None:
    windows = np.random.default_rng(0).normal(size=(700, 300))
    assert row_medians(windows).tolist() == np.median(windows, axis=1).tolist()
    medians, mads = row_spreads(windows)
    assert medians.tolist() == np.median(windows, axis=1).tolist()
    assert mads.tolist() == np.median(np.abs(windows - medians[:, None]), axis=1).tolist()
    windows[::3] = np.round(windows[::3], 1)
    assert row_units(windows).tolist() == [printed_unit(row) for row in windows.tolist()]


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([0.31] * 3 + [0.3], 0.01),
        ([0.3] * 4, 0.01),  # coarser is not believed
        ([-3.0] * 4, 0.01),
        ([1e-4, 2e-4, 1e-4, 1e-4], 1e-4),
        ([0.3125] * 4, 1e-4),
        ([1 / 3] * 4, 0.0),  # was not printed
        ([0.31, 0.32, 0.33, 0.31], 0.0),  # most differ: rounding does not matter
        ([0.0] * 4, 0.0),
        ([2e6] * 4, 0.0),
    ],
)
def test_the_unit_of_a_printed_log(values: list[float], unit: float) -> None:
    assert printed_unit(values) == unit
    assert row_units(np.array([values])).tolist() == [unit]


def test_every_number_of_four_decimals_is_seen_to_have_them() -> None:
    for count in range(1, 20_000, 7):
        value = float(f"{count / 10_000:.4f}")
        assert printed_unit([value] * 2 + [0.0001] * 2) == 1e-4


def test_windows_end_where_they_are_told() -> None:
    found = windows_at(np.arange(10.0), 3, 4, 2, 3)
    assert found.tolist() == [[1, 2, 3], [3, 4, 5], [5, 6, 7]]


def test_a_row_of_values_is_held_cut_and_rebuilt() -> None:
    recent = Recent([1.0, 2.0])
    other = Recent.from_tree(recent.to_tree())
    recent.hold(np.arange(6.0)[::2])
    assert recent.to_tree() == [0.0, 2.0, 4.0]
    assert other.to_tree() == [1.0, 2.0]
    assert math.isnan(Recent().median())
