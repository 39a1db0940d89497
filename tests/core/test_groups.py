"""Parameters counted together, against sums written out."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.groups import Groups, total_norm

NAMES = ["b.1", "a", "b.1", "c", "a", "b.1"]
SIZES = [4, 0, 6, 5, 7, 1]


def test_names_come_in_order_of_appearance_with_their_sizes() -> None:
    groups = Groups(NAMES, SIZES)
    assert groups.names == ("b.1", "a", "c")
    assert groups.sizes.tolist() == [11.0, 7.0, 5.0]


FLOATS = st.floats(min_value=0, max_value=2.0**126, width=32)
TABLES = st.lists(st.tuples(st.sampled_from("abcde"), FLOATS), min_size=1, max_size=30)


@given(TABLES)
def test_sums_norms_and_largest_are_those_of_each_group(table: list[tuple[str, float]]) -> None:
    names, values = [name for name, _ in table], np.array([value for _, value in table])
    groups = Groups(names, [1] * len(names))
    own = [[v for n, v in table if n == name] for name in groups.names]
    assert set(groups.names) == set(names) and len(groups.names) == len(set(names))
    assert groups.sums(values).tolist() == pytest.approx([math.fsum(v) for v in own], rel=1e-12)
    assert groups.largest(values).tolist() == [max(v) for v in own]
    norms = [math.sqrt(math.fsum(v * v for v in one)) for one in own]
    assert groups.norms(values).tolist() == pytest.approx(norms, rel=1e-12)
    assert groups.sizes.tolist() == [len(v) for v in own]
    whole = math.sqrt(math.fsum(v * v for v in values.tolist()))
    assert total_norm(values) == pytest.approx(whole, rel=1e-12)
    assert total_norm(groups.norms(values)) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", range(6))
def test_what_is_not_finite_shows_in_its_own_group_only(place: int, bad: float) -> None:
    groups, values = Groups(NAMES, SIZES), np.arange(1.0, 7.0)
    values[place] = bad
    broken = [name == NAMES[place] for name in groups.names]
    for found in (groups.sums(values), groups.norms(values), groups.largest(values)):
        assert (~np.isfinite(found)).tolist() == broken
        assert np.isnan(found).any() == math.isnan(bad)
    assert not math.isfinite(total_norm(values))


def test_a_nan_is_not_hidden_by_a_larger_number_or_by_inf() -> None:
    groups = Groups(["a"] * 3, [1] * 3)
    for order in ([math.nan, 9.0, 1.0], [9.0, math.nan, 1.0], [math.inf, math.nan, 1.0]):
        assert math.isnan(groups.largest(np.array(order))[0])
        assert math.isnan(groups.sums(np.array(order))[0])


def test_extremes_of_fp32_neither_overflow_nor_vanish() -> None:
    groups = Groups(["a", "a", "b", "b"], [1] * 4)
    norms = groups.norms(np.array([3e38, 3e38, 1e-45, 1e-45]))
    assert norms.tolist() == pytest.approx([3e38 * math.sqrt(2), 1e-45 * math.sqrt(2)], rel=1e-12)


def test_zeros_and_no_parameters() -> None:
    groups = Groups(["a", "b"], [0, 3])
    zeros = np.zeros(2)
    assert groups.norms(zeros).tolist() == groups.largest(zeros).tolist() == [0.0, 0.0]
    assert total_norm(np.zeros(0)) == 0.0
    nothing = Groups([], [])
    assert nothing.names == () and len(nothing.norms(np.zeros(0))) == 0


def test_values_that_are_given_are_not_changed() -> None:
    groups, values = Groups(NAMES, SIZES), np.arange(6.0)
    groups.sums(values), groups.norms(values), groups.largest(values)
    assert values.tolist() == list(range(6))
