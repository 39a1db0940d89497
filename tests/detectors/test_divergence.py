"""The divergence rule by hand, on healthy runs of every kind, and on runs that are lost."""

import math

import numpy as np
import pytest

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.divergence import Divergence

AT = np.arange(4000)[:, None]


def alarms_of(values, rule: Divergence | None = None) -> list[Alarm]:
    rule = rule or Divergence()
    block = np.asarray(values, np.float64)
    block = block.reshape(len(block), -1)
    names = [f"loss/{place}" for place in range(block.shape[1])]
    return rule.update(rule.init(names), np.arange(len(block)), block)[1]


def run_of(rng: np.random.Generator, *, noise: float = 0.03, columns: int = 25) -> np.ndarray:
    """A loss from 11 to 3, with noise of a share of the level."""
    level = 3 + 8 / (1 + AT / 60)
    return level * (1 + noise * rng.standard_normal((len(AT), columns)))


def test_the_first_alarm_by_hand() -> None:
    # Ten blocks of 8 at 2.0: best 2.0, nothing gained, no moves; the limit is 2.0 + 20 % = 2.4.
    # Four blocks at 2.5 are 32 readings: the last of them, step 111, is the first alarm.
    found = alarms_of([2.0] * 80 + [2.5] * 40)
    assert [a.step for a in found] == list(range(111, 120))
    first = found[0]
    assert (first.onset_step, first.baseline, first.threshold) == (80, 2.0, 2.4)
    assert first.kind is AlarmKind.DIVERGENCE
    assert alarms_of([2.0] * 80 + [2.4] * 40) == []
    assert alarms_of([2.0] * 80 + [2.5] * 31 + [2.0] * 40) == []
    assert alarms_of([2.0] * 80 + ([2.5] * 24 + [2.0] * 8) * 5) == []


def test_at_the_level_of_the_start_three_readings_are_enough() -> None:
    values = [6.0] * 8 + [3.0] * 72
    assert [a.step for a in alarms_of([*values, 6.0, 6.0, 6.0, 6.0])] == [82, 83]
    assert alarms_of([*values, 6.0, 6.0, 5.9, 6.0, 6.0]) == []
    high = [5.0] * 8 + [3.9] * 72  # never a third below: a run like that has no way back to show
    assert alarms_of([*high, 6.0, 6.0, 6.0, 6.0]) == []


def test_each_margin_by_hand() -> None:
    """Limits after ten calm blocks: the best level and the largest of four margins."""
    for opening, level, limit in (
        (3.0, 3.0, 3.6),  # a fifth of the level
        (3.0, 0.1, 0.39),  # a tenth of the 2.9 that were gained
        (0.2, 0.2, 0.3),  # 0.1 nats
    ):
        calm = [opening] * 8 + [level] * 400
        assert alarms_of(calm + [limit - 1e-6] * 64) == []
        assert alarms_of(calm + [limit + 1e-6] * 64)[0].threshold == pytest.approx(limit)
    # Levels that go 2, 3, 2, 3 move by 1 up and down: quartiles 2 apart, 2 / 1.349 = 1.4826;
    # five of them above the best median of five, 2, are 9.413.
    restless = ([2.0] * 8 + [3.0] * 8) * 30
    assert alarms_of(restless + [9.41] * 64) == []
    assert alarms_of(restless + [9.42] * 64)[0].threshold == pytest.approx(9.413, abs=1e-3)


@pytest.mark.parametrize("noise", ["gaussian", "student"])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_healthy_runs_are_quiet(share: float, noise: str) -> None:
    """50 runs of 4,000 readings each: none of 200,000 may alarm, for its alarms can act."""
    rng = np.random.default_rng(1)
    draw = rng.standard_normal if noise == "gaussian" else lambda shape: rng.standard_t(3, shape)
    level = 3 + 8 / (1 + AT / 60)
    assert alarms_of(level * np.abs(1 + share * draw((len(AT), 50)))) == []


def test_outliers_spikes_that_heal_and_epochs_are_quiet() -> None:
    rng = np.random.default_rng(2)
    values = run_of(rng)
    outliers = np.where(
        rng.random(values.shape) < 0.025, values + rng.uniform(0.5, 4, values.shape), values
    )
    assert alarms_of(outliers) == []
    healing = values + 4 * np.exp(-np.clip(AT - 2000, 0, None) / 8) * (AT >= 2000)
    assert alarms_of(healing) == []
    assert alarms_of(values - 0.35 * (AT // 1000)) == []
    bump = values + 0.3 * np.exp(-np.clip(AT - 2000, 0, None) / 60) * (AT >= 2000)
    assert alarms_of(bump) == []


def test_losses_near_or_below_zero_are_quiet() -> None:
    """A policy's loss has no scale; one that is memorised may double and lose nothing."""
    rng = np.random.default_rng(3)
    shape = (len(AT), 25)
    near_zero = 1e-4 * np.exp(AT / 1500) * (1 + 0.3 * rng.standard_normal(shape))
    assert alarms_of(near_zero) == []
    assert alarms_of(0.05 * rng.standard_normal(shape) + 0.1 * np.sin(AT / 300)) == []
    assert alarms_of(-3 + 2 * np.sin(AT / 500) + 0.1 * rng.standard_normal(shape)) == []
    memorised = 3 * np.exp(-AT / 300) + 0.005 + 0.02 * (AT > 3000)
    assert alarms_of(memorised * (1 + 0.1 * rng.standard_normal(shape))) == []


@pytest.mark.parametrize(("rise", "slope_readings"), [(1.0, 1), (1.0, 200), (4.0, 1)])
def test_a_run_that_is_lost_is_found_in_every_case(rise: float, slope_readings: int) -> None:
    """A third and more above for good; found 32 to 40 readings after it passed the limit."""
    values = run_of(np.random.default_rng(4), noise=0.02)
    values += rise * np.clip((AT - 2000) / slope_readings, 0, 1)
    first: dict[str, int] = {}
    for alarm in alarms_of(values):
        first.setdefault(alarm.series, alarm.step)
    assert len(first) == 25
    assert min(first.values()) >= 2000
    assert max(first.values()) <= 2000 + slope_readings + 40


def test_what_stays_is_accepted_and_reported_once() -> None:
    found = alarms_of([2.0] * 80 + [3.0] * 400)
    assert [a.kind for a in found] == [AlarmKind.DIVERGENCE] * 99 + [AlarmKind.SHIFT]
    again = alarms_of([2.0] * 80 + [3.0] * 400 + [4.5] * 40)
    assert [a.step for a in again[100:]] == list(range(511, 520))


def test_a_nan_is_no_reading() -> None:
    values = [2.0] * 80 + [2.5] * 16 + [math.nan] * 50 + [2.5] * 16
    assert [a.step for a in alarms_of(values)] == [161]


@pytest.mark.parametrize(
    "setting",
    [
        {"share": 0.0}, {"gain_share": math.nan}, {"rise": -1.0}, {"z": math.inf},
        {"patience_blocks": 0}, {"rebaseline_after_steps": 0},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"divergence.*{next(iter(setting))}"):
        Divergence(**setting)
