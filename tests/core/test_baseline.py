"""The frame of window rules: whichever way values come in, not one bit differs."""

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.baseline import HUGE, WindowColumn, WindowDetector, phase_of
from foreshock.core.detector import Alarm, AlarmKind, copy_state, state_from_tree, state_to_tree
from foreshock.core.errors import ConfigError
from foreshock.detectors.elevation import Elevation
from foreshock.detectors.median_ratio import MedianRatio
from foreshock.detectors.spike import Spike

SMALL = {"window_steps": 6, "refresh_steps": 3, "warmup_steps": 4, "rebaseline_after_steps": 3}
RULES: dict[str, Any] = {
    "median_ratio": MedianRatio(**SMALL),
    "elevation": Elevation(**SMALL, hold_steps=3),
    "spike": Spike(**SMALL, spread_steps=9),
    "spike of a long level": Spike(**{**SMALL, "window_steps": 11}, spread_steps=5),
}
every = pytest.mark.parametrize("name", RULES)

ODD = [
    math.nan,
    math.inf,
    -math.inf,
    0.0,
    -0.0,
    -1.0,
    2.5,
    9.0,
    9.0,
    1e30,
    1.7e308,
    -1.7e308,
    5e-324,
]
"""Values that are not like those before them."""


@st.composite
def series(draw: st.DrawFn) -> list[float]:
    """Stretches of noise, of several kinds and levels, with odd values in between."""
    found: list[float] = []
    for _ in range(draw(st.integers(1, 5))):
        rng = np.random.default_rng(draw(st.integers(0, 10**6)))
        length = draw(st.integers(0, 90))
        level = draw(st.sampled_from([1.0, 1.0, 0.0, -2.0, 3.0, 1e-4, 1e299]))
        noise = draw(st.sampled_from([0.0, 0.05, 0.3]))
        drawn = rng.standard_t(3, length) if draw(st.booleans()) else rng.normal(size=length)
        values = level * (1 + noise * drawn)
        if draw(st.booleans()):
            values = np.round(values, draw(st.integers(1, 4)))
        found += values.tolist()
        found += draw(st.lists(st.sampled_from(ODD), max_size=8))
    return found


def names(count: int) -> list[str]:
    return [f"loss/{place}" for place in range(count)]


def feed(
    rule: WindowDetector[Any], state: Any, block: np.ndarray, cuts: list[int]
) -> tuple[str, str]:
    """The alarms and the final state, of a block that comes in pieces."""
    alarms: list[Alarm] = []
    for low, high in zip([0, *cuts], [*cuts, len(block)], strict=True):
        state, found = rule.update(state, np.arange(low, high) * 2, block[low:high])
        alarms += found
    return repr(alarms), repr((state_to_tree(state), rule.thresholds(state)))


@every
@settings(max_examples=150, deadline=None)
@given(data=st.data(), values=series())
def test_blocks_and_single_values_give_the_same_bits(
    name: str, data: st.DataObject, values: list[float]
) -> None:
    rule = RULES[name]
    block = np.array(values)[:, None]
    one_by_one = feed(rule, rule.init(names(1)), block, list(range(1, len(block))))
    assert feed(rule, rule.init(names(1)), block, []) == one_by_one
    cuts = sorted(data.draw(st.lists(st.integers(0, len(block)), max_size=5)))
    assert feed(rule, rule.init(names(1)), block, cuts) == one_by_one


@every
@settings(max_examples=30, deadline=None)
@given(data=st.data(), columns=st.lists(series(), min_size=2, max_size=4))
def test_a_row_of_series_gives_the_same_bits_as_each_alone(
    name: str, data: st.DataObject, columns: list[list[float]]
) -> None:
    rule = RULES[name]
    length = min(map(len, columns))
    block = np.array([column[:length] for column in columns]).T.reshape(length, len(columns))
    cut = data.draw(st.integers(0, length))
    together, alarms = rule.init(names(len(columns))), []
    for row in range(cut):  # live first, then as a log
        together, found = rule.update(together, np.arange(row, row + 1), block[row : row + 1])
        alarms += found
    together, found = rule.update(together, np.arange(cut, length), block[cut:])
    alarms += found
    for place, series_name in enumerate(names(len(columns))):
        alone, found = rule.update(
            rule.init([series_name]), np.arange(length), block[:, place : place + 1]
        )
        mine = [alarm for alarm in alarms if alarm.series == series_name]
        assert repr(mine) == repr(found)
        assert repr(state_to_tree(alone)) == repr(state_to_tree(together[place : place + 1]))


@every
@settings(max_examples=60, deadline=None)
@given(before=series(), after=series())
def test_a_state_is_plain_json_and_goes_on_identically(
    name: str, before: list[float], after: list[float]
) -> None:
    rule = RULES[name]
    state, _ = rule.update(rule.init(names(1)), np.arange(len(before)), np.array(before)[:, None])
    tree = json.loads(json.dumps(state_to_tree(state), allow_nan=False))
    rebuilt, copied = state_from_tree(rule.init(names(1)), tree), copy_state(state)
    live = feed(rule, state, np.array(after)[:, None], [])
    assert feed(rule, rebuilt, np.array(after)[:, None], [7] if len(after) > 7 else []) == live
    assert feed(rule, copied, np.array(after)[:, None], []) == live


@every
def test_a_calm_log_is_skimmed_as_a_whole(name: str) -> None:
    rule = RULES[name]
    values = 1 + 0.05 * np.sin(1.7 * np.arange(5000))
    (column,), _ = rule.update(rule.init(names(1)), np.arange(100), values[:100, None])
    assert rule.skim(column, np.arange(100, 5000), values[100:]) == 4900


@every
def test_a_skim_stops_at_what_is_not_ordinary(name: str) -> None:
    rule = RULES[name]
    values = 1 + 0.05 * np.sin(1.7 * np.arange(500))
    for odd in (math.nan, -math.inf, 50.0, -1.7e308):
        (column,), _ = rule.update(rule.init(names(1)), np.arange(100), values[:100, None])
        values[321] = odd
        assert rule.skim(column, np.arange(100, 500), values[100:]) == 221
        assert rule.skim(column, np.arange(321, 500), values[321:]) == 0


def refreshes(rule: MedianRatio, series_name: str, count: int) -> list[int]:
    """Number of healthy values at each refresh."""
    column, found = rule.start(series_name), []
    for step in range(count):
        before = column.num_accepted
        rule.see(column, step, 1.0)
        if column.num_accepted > before:
            found.append(column.num_accepted)
    return found


def test_refreshes_are_dense_in_a_young_run_and_regular_in_an_old_one() -> None:
    found = refreshes(MedianRatio(refresh_steps=10), "grad_norm/a", 300)
    assert found[:32] == list(range(1, 33))
    for low, high in pairwise(found):
        assert high - low <= max(1, low // 16)
    late = [count for count in found if count >= 170]
    assert {(count + phase_of("grad_norm/a")) % 10 for count in late} == {0}


def test_a_warm_up_ends_with_a_look_at_all_of_it() -> None:
    for warmup in (33, 50, 51, 70):
        for name in names(8):
            assert warmup in refreshes(MedianRatio(warmup_steps=warmup), name, 80)


def test_series_take_turns() -> None:
    turns = {
        refreshes(MedianRatio(refresh_steps=10), f"grad_norm/blocks.{place}", 190)[-1]
        for place in range(60)
    }
    assert len(turns) == 10


def test_a_shift_counts_what_it_takes_in() -> None:
    rule = RULES["median_ratio"]
    column = rule.start("grad_norm/a")
    for step in range(62):
        rule.see(column, step, 1.0)
    assert column.fresh, "some have come since the last refresh"
    # Three sixes become the level; 30 is 5 x 6, not beyond it, and joins; 31 is beyond it.
    found = [rule.see(column, 62 + step, value) for step, value in enumerate([6, 6, 6, 30, 31.0])]
    kinds = [alarm and alarm.kind for alarm in found]
    spike = AlarmKind.SPIKE
    assert kinds == [spike, spike, AlarmKind.SHIFT, None, spike]
    assert column.num_accepted + len(column.fresh) == 62 + 3 + 1
    assert rule.threshold(column).baseline == 6.0


def test_what_is_huge_is_remembered_as_less() -> None:
    column = WindowColumn("loss/a")
    RULES["median_ratio"].see(column, 0, -1.7e308)
    assert column.window.tolist() == [-HUGE]


@pytest.mark.parametrize("setting", ["window_steps", "refresh_steps", "warmup_steps"])
def test_a_number_of_steps_below_one_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"elevation.{setting} is 0"):
        Elevation(**{setting: 0})
