"""The one rule that speaks for NaN and Inf."""

import math

import numpy as np
import pytest

from foreshock.core.detector import AlarmKind
from foreshock.detectors.nonfinite import Nonfinite


def alarms_of(values):
    rule = Nonfinite()
    block = np.asarray(values, np.float64).reshape(-1, 1)
    return rule.update(rule.init(["loss/global"]), np.arange(len(block)), block)[1]


def test_runs_by_hand() -> None:
    found = alarms_of([math.nan, 1, math.inf, -math.inf, math.nan, 2, math.nan])
    assert [(a.step, a.onset_step) for a in found] == [(0, 0), (2, 2), (3, 2), (4, 2), (6, 6)]
    assert {a.kind for a in found} == {AlarmKind.NONFINITE}


@pytest.mark.parametrize("value", [1.7976931348623157e308, -1.7976931348623157e308, 5e-324, -0.0])
def test_extreme_is_not_broken(value: float) -> None:
    assert alarms_of([value] * 3) == []


def test_no_false_alarm_under_any_noise_and_no_delay() -> None:
    rng = np.random.default_rng(0)
    noise = np.concatenate([rng.standard_normal(20000), rng.standard_t(3, 20000)])
    assert alarms_of(noise) == []
    noise[12345] = math.nan
    assert [a.step for a in alarms_of(noise)] == [12345]


def test_a_run_goes_on_over_blocks_and_ends_in_one() -> None:
    rule = Nonfinite()
    nan = math.nan
    block = np.array([[nan, 1], [nan, 1], [1, nan], [nan, nan], [nan, 1], [1, 1], [nan, nan]])
    expected = [(0, 0, "a"), (1, 0, "a"), (2, 2, "b"), (3, 3, "a"), (3, 2, "b"), (4, 3, "a"),
                (6, 6, "a"), (6, 6, "b")]  # fmt: skip
    for cuts in ([], [1], [3, 4], [2, 5], [1, 2, 3, 4, 5, 6]):
        state, found = rule.init(["loss/a", "loss/b"]), []
        for low, high in zip([0, *cuts], [*cuts, 7], strict=True):
            state, alarms = rule.update(state, np.arange(low, high), block[low:high])
            found += [(alarm.step, alarm.onset_step, alarm.series[-1]) for alarm in alarms]
        assert found == expected, cuts
        assert (state.starts, state.num_open) == ([6, 6], 2)


def test_a_block_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nonfinite.*\(2, 2\).*2 steps, 1 series"):
        Nonfinite().update(Nonfinite().init(["loss/a"]), np.arange(2), np.zeros((2, 2)))
