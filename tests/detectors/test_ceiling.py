"""The ceiling rule: crossing a limit that is known to end badly."""

from itertools import pairwise

import numpy as np
import pytest

from foreshock.core.errors import ConfigError
from foreshock.detectors.ceiling import Ceiling


def alarms(values: list[float], series: str = "max_attention_logit/blocks.0", **settings: float):
    rule = Ceiling(**settings)
    block = np.array(values)[:, None]
    _, found = rule.update(rule.init([series]), np.arange(len(values)), block)
    return [(alarm.step, alarm.onset_step) for alarm in found]


def test_the_first_alarm_comes_with_the_second_reading_above() -> None:
    assert alarms([50, 99, 101, 99, 101, 102]) == [(5, 4)]


def test_it_tells_again_only_when_the_value_has_doubled() -> None:
    climb = [50.0 * 1.1**step for step in range(60)]
    steps = [step for step, _ in alarms(climb)]
    told_at = [climb[step] for step in steps]
    assert 100 < told_at[0] < 125
    assert all(2 <= later / earlier < 2.3 for earlier, later in pairwise(told_at))
    assert len(steps) == 7
    assert {onset for _, onset in alarms(climb)} == {8}


def test_what_has_always_stood_above_says_nothing() -> None:
    assert alarms([400.0, 500, 900, 4000]) == []


def test_falling_back_begins_anew() -> None:
    assert alarms([50, 150, 150, 50, 150, 150]) == [(2, 1), (5, 4)]


def test_rms_t_has_a_limit_of_its_own() -> None:
    values = [1.0, 2.2, 2.4, 2.5]
    assert alarms(values, "rms_t/blocks.1.ffn") == [(3, 2)]
    assert alarms(values) == []


def test_a_broken_reading_neither_counts_nor_ends_the_stretch() -> None:
    assert alarms([50, 150, np.nan, np.inf, 150]) == [(4, 1)]


def test_the_onset_reaches_a_hundred_steps_back_at_most() -> None:
    found = alarms([50.0] + [150.0] * 300 + [700.0])
    assert found == [(2, 1), (301, 201)]


@pytest.mark.parametrize("setting", ["attention_logit", "rms_t", "patience_readings"])
def test_settings_out_of_range_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        Ceiling(**{setting: 0})
