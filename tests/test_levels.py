"""Levels at which a series stands, against counting by hand."""

import math
import statistics

import numpy as np
import pytest

from foreshock.levels import Level, is_at, level_of, stands_off

LOSS = "loss/global"
CONTROL = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 0.9]  # median 1, deviation 1.4826 * 0.075


def by_hand(values: list[float], control: list[float], sign: int) -> list[float]:
    control = [one for one in control if math.isfinite(one)]
    if len(control) < 8:
        return [0.0 for _ in values]
    middle = statistics.median(control)
    spread = 1.4826 * statistics.median([abs(one - middle) for one in control])
    half = len(control) // 2
    drift = abs(statistics.median(control[half:]) - statistics.median(control[:half]))
    found = []
    for value in values:
        distance = (value - middle) * sign
        found.append(distance if distance > 6 * max(spread, drift) else 0.0)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_what_stands_off_is_what_a_count_by_hand_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    control = rng.normal(2.0, 0.1, rng.integers(4, 33)).tolist()
    if seed % 3 == 0:
        control[1] = math.nan
    values = rng.normal(2.0, 0.8, 20).tolist()
    for sign in (1, -1):
        assert stands_off(values, control, sign) == pytest.approx(by_hand(values, control, sign))


def test_what_drifts_by_itself_does_not_stand_off() -> None:
    steady = [1.0 + 0.001 * (step % 2) for step in range(32)]
    rising = [1.0 + 0.001 * step for step in range(32)]
    later = [1.0 + 0.001 * step for step in range(92, 110)]
    assert sum(one > 0 for one in stands_off(later, steady, 1)) == 18
    assert not any(stands_off(later, rising, 1))


def test_a_level_lasts_and_a_burst_does_not() -> None:
    found = level_of(LOSS, [1.0, 1.0, 3.0, 3.2, 3.1, 3.0], CONTROL)
    assert found is not None
    assert (found.sign, found.share) == (1, pytest.approx(4 / 6))
    assert found.height == pytest.approx(2.05)
    down = level_of(LOSS, [-1.0, -1.0, -1.0], CONTROL)
    assert down is not None
    assert down.sign == -1
    assert level_of(LOSS, [3.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0], CONTROL) is None
    assert level_of(LOSS, [3.0, 3.0], CONTROL) is None
    assert level_of(LOSS, [1.0, 1.1, 0.9, 1.0], CONTROL) is None
    assert level_of(LOSS, [3.0, 3.0, 3.0], CONTROL[:7]) is None
    assert level_of(LOSS, [], CONTROL) is None


LEVEL = Level(LOSS, 1, 0.8, 3.0)


@pytest.mark.parametrize(
    ("values", "back"),
    [
        ([4.0, 4.0, 4.0, 4.0], True),
        ([2.1, 2.1, 2.1, 2.1], True),  # a third as high
        ([1.9, 1.9, 1.9, 1.9], False),
        ([-2.0, -2.0, -2.0, -2.0], False),  # below, where the incident stood above
        ([4.0, 4.0, 4.0, 4.0, 1.0, 1.0, 1.0, 1.0], False),  # it has fallen back
        ([1.0, 1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0], True),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0, 4.0, 4.0], False),  # in less than half the share
        ([4.0, 4.0], False),
        ([math.nan] * 4, False),
        ([], False),
    ],
)
def test_it_is_back_where_it_stands_as_long_and_a_third_as_high(
    values: list[float], back: bool
) -> None:
    assert is_at(LEVEL, values, CONTROL) is back
