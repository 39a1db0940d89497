"""Trends that outliers do not bend, and what they say about where to go back to."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.snapshot import Health, SnapshotRef, choose_target
from foreshock.core.trend import trend_of

DOUBT = Health(doubts=("activation_norm/final has grown 1.4-fold over its last 50 values",))
ILL = Health(concerns=("hurt",))


@given(
    st.floats(-5, 5), st.floats(0.5, 50), st.integers(10, 60), st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(deadline=None, max_examples=100)
def test_a_line_with_a_quarter_of_outliers_is_still_that_line(slope, start, count, seed) -> None:
    rng = np.random.default_rng(seed)
    values = start + slope * np.arange(count)
    spoilt = values.copy()
    places = rng.choice(count - 5, size=(count - 5) // 4, replace=False)
    spoilt[places] += rng.choice([1e4, -1e4, np.nan, np.inf], size=len(places))
    trend = trend_of(spoilt)
    if trend is None:
        assert np.isfinite(spoilt).sum() < 10
        return
    assert trend.level == pytest.approx(values[-1], rel=1e-6, abs=1e-6)
    if np.isfinite(spoilt[0]):
        assert trend.growth == pytest.approx(values[-1] / start, rel=1e-6, abs=1e-6)


def test_noise_is_no_trend_and_a_drift_is() -> None:
    rng = np.random.default_rng(0)
    noisy = [trend_of(3 + rng.normal(size=50)) for _ in range(200)]
    assert sum(one is not None and one.clear for one in noisy) <= 2
    drift = trend_of(3 + 0.2 * np.arange(50) + rng.normal(size=50))
    assert drift is not None
    assert drift.rising
    falling = trend_of(30 - 0.2 * np.arange(50) + rng.normal(size=50))
    assert falling is not None
    assert falling.clear
    assert not falling.rising


def test_the_distance_is_that_of_the_last_five() -> None:
    rng = np.random.default_rng(1)
    values = 2 - 0.01 * np.arange(50) + 0.02 * rng.normal(size=50)
    calm = trend_of(values)
    assert calm is not None
    assert abs(calm.distance) < 2
    values[-5:] += 0.3
    risen = trend_of(values)
    assert risen is not None
    assert risen.distance > 6
    values[-5:] -= 0.3
    values[-2:] += 5  # two outliers of five
    spiked = trend_of(values)
    assert spiked is not None
    assert spiked.distance < 3


@pytest.mark.parametrize("values", [[], [1.0] * 9, [np.nan] * 50, [1.0] * 9 + [np.inf] * 9])
def test_too_few_are_no_trend(values) -> None:
    assert trend_of(np.array(values, dtype=np.float64)) is None


def test_a_constant_is_calm() -> None:
    for level in (0.0, -3.0, 7.5, 1e-30, 1e30):
        trend = trend_of(np.full(20, level))
        assert trend is not None
        assert (trend.level, trend.distance, trend.clear) == (level, 0.0, False)


# ---- the choice of a target -------------------------------------------------------------


def ref(step: int, health: Health | None = None) -> SnapshotRef:
    return SnapshotRef(
        id=f"s{step}", attempt=1, step=step, position=0, durable=True, digest="",
        health=health or Health(),
    )  # fmt: skip


def target(refs, onset, older_by=0) -> int:
    chosen = choose_target(refs, onset, older_by).target
    assert chosen is not None
    return chosen.step


def test_one_in_doubt_gives_way_to_one_not_much_older() -> None:
    refs = [ref(0), ref(70), ref(80), ref(90, DOUBT)]
    assert target(refs, 95) == 80  # 15 from the onset, at most 3 times 5
    choice = choose_target(refs, 95)
    told = {one.ref.step: one.objection for one in choice.judged}
    assert DOUBT.doubts[0] in told[90]
    assert "s80 is free of doubt" in told[90]
    assert told[80] == ""
    assert "no better than s80" in told[70]


def test_it_is_only_a_preference() -> None:
    assert target([ref(0), ref(70), ref(90, DOUBT)], 95) == 90  # 70 is too far
    assert target([ref(0, DOUBT), ref(90, DOUBT)], 95) == 90
    assert target([ref(80, ILL), ref(90, DOUBT)], 95) == 90
    assert target([ref(80), ref(90)], 95) == 90


def test_the_next_targets_are_near_and_then_twice_as_far_each() -> None:
    refs = [ref(step) for step in range(0, 1000, 10)]
    steps = [target(refs, 1000, older_by) for older_by in range(12)]
    assert steps == [990, 980, 970, 960, 920, 840, 680, 360, 10, 0, 0, 0]
    told = {one.ref.step: one.objection for one in choose_target(refs, 1000, 4).judged}
    assert "failed before" in told[980]
    assert "too near" in told[940]
    assert told[920] == ""


def test_the_next_target_of_one_in_doubt_is_older_than_what_was_taken() -> None:
    refs = [ref(0), ref(70), ref(80), ref(90, DOUBT)]
    assert [target(refs, 95, older_by) for older_by in range(4)] == [80, 70, 0, 0]


def test_doubts_survive_json_and_old_labels_have_none() -> None:
    assert Health.from_json(DOUBT.to_json()) == DOUBT
    assert Health.from_json({"concerns": [], "figures": {}}).doubts == ()
    assert DOUBT.healthy
