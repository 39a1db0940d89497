"""The imbalance rule by hand, on models that are merely uneven, and for a thousand scopes."""

import math

import numpy as np
import pytest

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.layer_imbalance import LayerImbalance


def names_of(count: int) -> list[str]:
    return [f"grad_norm/blocks.{place}" for place in range(count)]


def alarms_of(values, names: list[str] | None = None, **settings) -> list[Alarm]:
    rule = LayerImbalance(**settings)
    block = np.asarray(values, np.float64)
    names = names or names_of(block.shape[1])
    return rule.update(rule.init(names), np.arange(len(block)), block)[1]


def test_more_than_nine_tenths_by_hand() -> None:
    # Usual shares 1/3 each. At (x, 1, 1) the first has x² / (x² + 2): 0.9 at x = sqrt(18).
    calm = [[1.0, 1.0, 1.0]] * 32
    limit = math.sqrt(18)
    (found,) = alarms_of([*calm, [limit * 1.001, 1, 1]])
    assert (found.step, found.onset_step, found.series) == (32, 32, "grad_norm/blocks.0")
    assert found.kind is AlarmKind.IMBALANCE
    assert found.baseline == pytest.approx(math.sqrt((18 * 1.002 + 2) / 3), rel=1e-3)
    assert alarms_of([*calm, [limit * 0.999, 1, 1]]) == []
    assert alarms_of([*calm[:31], [limit * 1.001, 1, 1]]) == [], "still warming up"


def test_ten_times_the_usual_norm_by_hand() -> None:
    # Of (0.1, 1, 1) the first has 0.01 / 2.01 = 0.4975 %; a hundred times that, 49.75 %, is
    # passed where x² / (x² + 2) = 0.4975, at x = 1.4072.
    calm = [[0.1, 1.0, 1.0]] * 32
    assert [a.series for a in alarms_of([*calm, [1.42, 1, 1]])] == ["grad_norm/blocks.0"]
    assert alarms_of([*calm, [1.40, 1, 1]]) == []
    tiny = [[1e-4, 1.0, 1.0]] * 32
    assert alarms_of([*tiny, [0.1, 1, 1]]) == [], "a thousandfold, and still below a tenth"


def test_one_that_always_was_most_of_it_is_no_alarm() -> None:
    rng = np.random.default_rng(0)
    values = np.exp(0.3 * rng.standard_normal((2000, 6))) * [20.0, 1, 1, 1, 1, 1]
    assert alarms_of(values) == []


def test_a_spike_of_the_whole_gradient_is_no_imbalance() -> None:
    values = np.exp(0.1 * np.random.default_rng(1).standard_normal((200, 8)))
    values[150] *= 1e4
    assert alarms_of(values) == []


@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_false_alarms_are_rare(spread: float) -> None:
    """None in 40,000 steps of 12 scopes, Gaussian or Student t, of a falling norm."""
    rng = np.random.default_rng(2)
    level = 1 + 10 * np.exp(-np.arange(20_000)[:, None] / 300)
    for noise in (rng.standard_normal((20_000, 12)), rng.standard_t(3, (20_000, 12)).clip(-4, 4)):
        assert alarms_of(level * np.exp(spread * noise)) == []


def test_a_known_change_is_found_at_once_and_accepted_if_it_stays() -> None:
    values = np.exp(0.1 * np.random.default_rng(3).standard_normal((600, 8)))
    values[300:, 5] *= 30
    found = alarms_of(values)
    assert {a.series for a in found} == {"grad_norm/blocks.5"}
    assert [a.step for a in found] == list(range(300, 400))
    assert [a.kind for a in found] == [AlarmKind.IMBALANCE] * 99 + [AlarmKind.SHIFT]
    assert {a.onset_step for a in found} == {300}


def test_flagged_readings_do_not_teach_what_is_usual() -> None:
    values = np.ones((400, 3))
    values[100:400:2, 0] = 50.0  # half of all readings
    assert len(alarms_of(values)) == 150


def test_the_global_norm_is_no_share_and_one_scope_alone_cannot_be_judged() -> None:
    names = ["grad_norm/global", "grad_norm/embed", "grad_norm/blocks.0", "grad_norm/head"]
    values = np.ones((60, 4))
    values[50, 0] = 1e6
    assert alarms_of(values, names) == []
    values[51, 1] = 1e3
    assert [a.series for a in alarms_of(values, names)] == ["grad_norm/embed"]
    assert alarms_of(values[:, :2], names[:2]) == []


def test_a_nan_anywhere_leaves_a_reading_out() -> None:
    values = np.ones((200, 3))
    values[40:60] = [math.nan, 50.0, 1.0]
    values[60:80] = [math.inf, 1.0, 1.0]
    values[80:100] = 0.0
    assert alarms_of(values) == []
    values[150, 0] = 50.0
    assert [a.step for a in alarms_of(values)] == [150]


@pytest.mark.parametrize("count", [5, 40, 300])
def test_a_block_is_judged_as_its_rows_are(count: int) -> None:
    """To the last bit, for so many scopes that numpy sums them in parts."""
    rng = np.random.default_rng(4)
    values = np.exp(rng.standard_normal((300, count)))
    values[100:260:7, 2] *= 1e3
    rule = LayerImbalance()
    whole, alarms = rule.update(rule.init(names_of(count)), np.arange(300), values)
    state, found = rule.init(names_of(count)), []
    for step in range(300):
        state, more = rule.update(state, np.array([step]), values[step : step + 1])
        found += more
    assert repr(found) == repr(alarms) != "[]"
    assert np.array_equal(state.rows, whole.rows)
    assert np.array_equal(state.usual, whole.usual)


@pytest.mark.parametrize(
    "setting",
    [{"most": 1.0}, {"least": 0.0}, {"jump": 1.0}, {"jump": math.nan},
     {"rebaseline_after_steps": 0}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"layer_imbalance.*{next(iter(setting))}"):
        LayerImbalance(**setting)
