"""Readings become alarms, alarms an episode; all of it is rewound with the weights."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.catalog import make, members
from foreshock.core.detector import AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.median_ratio import MedianRatio
from foreshock.detectors.nonfinite import Nonfinite
from foreshock.detectors.spike import Spike
from foreshock.monitor import Monitor

SERIES = (
    "loss/global", "grad_norm/global", "grad_norm/blocks.0", "activation_norm/final",
    "loss_scale/global", "update_ratio/global", "param_norm/global",
)  # fmt: skip
UPDATE = frozenset({"update_ratio/global", "param_norm/global"})
LEVEL = np.array([2.5, 0.4, 0.2, 4.0, 65536.0, 2e-3, 30.0])


def monitor(quiet_steps: int = 5, detectors=None) -> Monitor:
    return Monitor(
        SERIES,
        update_series=UPDATE,
        detectors=detectors or [Spike(), MedianRatio(), Nonfinite()],
        causes=[make("causes", name) for name in members("causes")],
        looks=[make("symptoms", name) for name in members("symptoms")],
        quiet_steps=quiet_steps,
    )


def row(**values: float) -> np.ndarray:
    """A healthy row, with single series (by signal and scope) overwritten."""
    found = LEVEL.copy()
    for series, value in values.items():
        signal, _, scope = series.partition("__")
        found[SERIES.index(f"{signal}/{scope.replace('_', '.') or 'global'}")] = value
    return found


def warm(found: Monitor, steps: int = 40) -> Monitor:
    for step in range(1, steps + 1):
        assert found.observe(1, step, True, row()) == []
    return found


ROWS = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from([1.0, 1.0, 1.0, 1.01, 3.0, 50.0, math.nan, math.inf]),
        st.integers(0, len(SERIES) - 1),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(ROWS, ROWS)
def test_going_back_and_on_again_equals_having_gone_on(before: list, after: list) -> None:
    live = warm(monitor(), 25)

    def go_on(found: Monitor, rows: list, step: int) -> str:
        told = []
        for place, (committed, factor, column) in enumerate(rows, step):
            values = LEVEL.copy()
            values[column] *= factor
            told.append(found.observe(1, place, committed, values))
        return repr(told)

    go_on(live, before, 26)
    tree, fresh = live.to_tree(), monitor()
    was = repr(tree)
    told = go_on(live, after, 26 + len(before))
    assert repr(tree) == was, "a snapshot does not change with the run"
    fresh.load_tree(tree)
    assert repr(fresh.to_tree()) == was
    assert go_on(fresh, after, 26 + len(before)) == told
    assert repr(fresh.to_tree()) == repr(live.to_tree())
    live.load_tree(tree)  # the same object goes back, too
    assert go_on(live, after, 26 + len(before)) == told


def test_a_rule_with_other_settings_or_series_starts_afresh() -> None:
    tree = warm(monitor()).to_tree()
    other = monitor(detectors=[Spike(z=8.0), MedianRatio(), Nonfinite()])
    other.load_tree(tree)
    assert other.not_ready() == {"loss/global": 20}
    fewer = Monitor(
        SERIES[1:], update_series=UPDATE, detectors=[Spike(), MedianRatio()],
        causes=[make("causes", "unknown")], quiet_steps=5,
    )  # fmt: skip
    fewer.load_tree(tree)
    assert fewer.not_ready() == {}
    wider = monitor(detectors=[dataclasses.replace(MedianRatio(), every_scope=True)])
    wider.load_tree(tree)
    assert set(wider.not_ready()) == {
        "grad_norm/global", "grad_norm/blocks.0", "update_ratio/global",
    }  # fmt: skip


def test_the_rules_watch_what_they_are_meant_for() -> None:
    found = monitor()
    assert found.not_ready() == dict.fromkeys(
        ("loss/global", "grad_norm/global", "update_ratio/global"), 20
    )
    warm(found)
    assert found.not_ready() == {}
    assert found.limit("grad_norm/global") == pytest.approx(2.0)
    assert found.limit("grad_norm/blocks.0") is None
    assert found.limit("lr/global") is None
    assert found.observe(1, 41, True, row(grad_norm__blocks_0=99.0)) == []
    (alarm,) = found.observe(1, 42, True, row(grad_norm__blocks_0=math.nan))
    assert (alarm.series, alarm.kind) == ("grad_norm/blocks.0", AlarmKind.NONFINITE)


def test_a_skipped_step_says_nothing_of_its_update() -> None:
    found = warm(monitor())
    for step in range(41, 60):
        assert found.observe(1, step, False, row(update_ratio=0.0)) == []
        assert found.limit("update_ratio/global") == pytest.approx(5 * 2e-3)
    assert found.observe(1, 60, False, row(update_ratio=1.0, param_norm=math.nan)) == []
    (alarm,) = found.observe(1, 61, True, row(update_ratio=1.0))
    assert alarm.series == "update_ratio/global"
    assert alarm.baseline == pytest.approx(2e-3)


def test_a_skipped_step_still_tells_its_gradient_and_its_loss() -> None:
    alarms = warm(monitor()).observe(1, 41, False, row(grad_norm=9.0, loss=9.0))
    assert sorted(alarm.signal for alarm in alarms) == ["grad_norm", "loss"]


def test_skips_in_a_row_are_counted() -> None:
    found = warm(monitor())
    counts = []
    for step, committed in enumerate([False, False, True, False], 41):
        found.observe(1, step, committed, row())
        counts.append(found.consecutive_skips)
    assert counts == [1, 2, 0, 1]


def test_an_episode_ends_after_quiet_steps() -> None:
    found = warm(monitor(quiet_steps=5))
    found.observe(1, 41, True, row(loss=9.0, grad_norm=9.0))
    found.observe(1, 43, True, row(loss=9.0))
    assert (len(found.episode), found.tallies(100)[0].num_alarmed) == (3, 2)
    for step in range(44, 48):
        found.observe(1, step, True, row())
        assert found.episode
    found.observe(1, 48, True, row())
    assert found.episode == []
    with pytest.raises(ValueError, match="without an alarm"):
        found.diagnose(None)


def test_an_episode_that_never_ends_needs_no_more_memory_for_it() -> None:
    found = warm(monitor())
    for step in range(41, 1241):
        found.observe(1, step, True, LEVEL * math.nan)
    assert len(found.episode) <= 4096
    assert found.episode[0].step == 41
    assert found.episode[-1].step == 1240
    assert found.diagnose(None).top.cause == "fp16_forward_overflow"  # its loss is scaled
    assert found.diagnose(None).onset_step == 41


def test_an_unanswered_alarm_is_doubted_until_a_probe_answers_it() -> None:
    found = warm(monitor())
    assert found.first_doubt() is None
    found.observe(1, 41, True, row(loss=9.0))
    found.observe(1, 42, True, row(loss=9.0))
    assert found.first_doubt() == 41
    found.probed_step = 41
    assert found.first_doubt() == 42
    found.probed_step = 42
    assert found.first_doubt() is None
    assert found.last_step == 42


# ---- health ---------------------------------------------------------------------------


def test_a_run_without_alarms_is_healthy_and_tells_its_figures() -> None:
    health = warm(monitor()).health()
    assert health.healthy
    assert health.figures["loss/global"] == 2.5
    assert health.figures["activation_norm/final"] == 4.0
    assert "grad_norm/blocks.0" not in health.figures
    assert monitor().health().figures == {}


@pytest.mark.parametrize(
    ("values", "concern"),
    [
        ({"loss": 9.0}, "loss/global was out of range at step 41"),
        ({"loss": math.nan}, "loss/global was out of range at step 41"),
        ({"loss_scale": 0.5}, "the loss scale is 0.5, below 1"),
        ({"activation_norm__final": 8.5}, "activation_norm/final is 8.5, usually 4"),
    ],
)
def test_what_speaks_against_a_snapshot(values: dict[str, float], concern: str) -> None:
    found = warm(monitor())
    found.observe(1, 41, True, row(**values))
    assert found.health().concerns == (concern,)
    assert found.health(["the disk is slow"]).concerns == ("the disk is slow", concern)


def test_an_episode_stays_a_concern_until_it_is_over() -> None:
    found = warm(monitor(quiet_steps=3))
    found.observe(1, 41, True, row(loss=9.0))
    concerns = []
    for step in range(42, 46):
        found.observe(1, step, True, row())
        concerns.append(found.health().healthy)
    assert concerns == [False, False, True, True]


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"same name.*spike.*spike"):
        monitor(detectors=[Spike(), Spike(z=8.0)])


def test_time_only_goes_forward_unless_it_is_rewound() -> None:
    found = warm(monitor())
    with pytest.raises(ValueError, match="rewind first"):
        found.observe(1, 40, True, row())


def test_only_alarmed_steps_of_the_last_few_confirm():
    found = warm(monitor(quiet_steps=50))
    for step in range(41, 101):
        raised = step in (60, 75, 90, 91)
        found.observe(1, step, True, row(loss=50.0) if raised else row())
    counts = [
        sum(one.num_alarmed for one in found.tallies(within)[:1]) for within in (5, 10, 11, 1000)
    ]
    assert counts == [0, 1, 2, 4]


def test_each_series_of_the_whole_model_counts_by_itself_too():
    found = warm(monitor(quiet_steps=50))
    for step in range(41, 101):
        loss = step in (60, 75, 76, 77, 100)
        far = {"loss": 50.0 if loss else 1.0, "grad_norm": 50.0 if loss or step % 10 == 5 else 1.0}
        found.observe(1, step, True, row(**far))
    tallies = found.tallies(10)
    assert [one.num_alarmed for one in tallies] == [2, 2, 1]
    every, norm, loss = (one.rate for one in tallies)
    assert loss == pytest.approx(2.5 / (100 + 90))
    assert every == pytest.approx(6.5 / (100 + 90))
    assert loss < norm <= every
    again = monitor(quiet_steps=50)
    again.load_tree(found.to_tree())
    assert again.tallies(10) == tallies
    assert monitor().tallies(10) == []


def test_an_outlier_that_a_probe_has_cleared_leaves_a_doubt_and_no_concern():
    found = warm(monitor(quiet_steps=50))
    found.observe(1, 41, True, row(loss=50.0))
    found.observe(1, 42, True, row())
    assert "out of range at step 41" in found.health().concerns[0]
    found.answered(whole=False)
    assert found.health().concerns
    found.answered(whole=True)
    assert found.health().concerns == ()
    assert found.health().doubts[0].endswith("at step 41, and a probe found no harm")
    again = monitor(quiet_steps=50)
    again.load_tree(found.to_tree())
    assert again.health() == found.health()
    found.observe(1, 43, True, row(loss=50.0))
    assert "out of range at step 43" in found.health().concerns[0]


def test_a_step_that_was_skipped_leaves_nothing():
    found = warm(monitor(quiet_steps=50))
    found.observe(1, 41, False, row(grad_norm=float("nan")))
    assert found.health().concerns
    found.observe(1, 42, True, row())
    assert found.health().concerns == found.health().doubts == ()


def test_harm_that_a_probe_found_speaks_against_benign():
    found = warm(monitor(quiet_steps=50))
    found.observe(1, 41, True, row(update_ratio=0.05))
    found.observe(1, 42, True, row())
    calm = {one.cause: one.probability for one in found.diagnose(None).candidates}
    hurt = {one.cause: one.probability for one in found.diagnose(None, harm="worse").candidates}
    assert hurt["benign"] < 0.05 < calm["benign"]
    assert found.diagnose(None, harm="worse").top.cause == "optimizer_state_corrupt"
