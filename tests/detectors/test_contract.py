"""What every detector keeps, present and future: found by looking into the folder."""

import dataclasses
import inspect
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.catalog import members
from foreshock.core.detector import (
    Alarm,
    AlarmKind,
    Detector,
    copy_state,
    state_from_tree,
    state_to_tree,
)

DETECTORS = members("detectors")
every = pytest.mark.parametrize("name", DETECTORS)

VALUES = st.one_of(
    st.floats(0.5, 2.0),
    st.sampled_from([1.0, 1.0, 1.0, 0.0, -0.0, -1.0, 10.0, 1e30, 1.7e308, -1.7e308, 5e-324]),
    st.sampled_from([math.nan, math.inf, -math.inf]),
)
LEVELS = {"loss_scale": 65536.0, "clip_share": 0.2}
"""Where a healthy signal stands, if not about 1."""

OF_CONSTANCY = {AlarmKind.PLATEAU, AlarmKind.SATURATION}
"""What may be said of a series for not changing at all."""


def rule(name: str, **settings: Any) -> Detector:
    """The detector, with what it needs few steps for set to few, where it has such a setting."""
    kind = DETECTORS[name]
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{key: value for key, value in settings.items() if key in known})


def quick(name: str) -> Detector:
    return rule(name, warmup_steps=5, rebaseline_after_steps=4, window_steps=9, spread_steps=9)


def series_of(detector: Detector, count: int = 1) -> list[str]:
    return [f"{detector.watches[0]}/{place or 'global'}" for place in range(count)]


def settled(detector: Detector, count: int = 40) -> list[float]:
    level = LEVELS.get(detector.watches[0], 1.0)
    return [level * (1.0 + 0.1 * math.sin(1.7 * step)) for step in range(count)]


def feed(detector: Detector, state: Any, values: Any, first: int = 0) -> tuple[Any, list[Alarm]]:
    block = np.asarray(values, np.float64)
    block = block[:, None] if block.ndim == 1 else block
    return detector.update(state, np.arange(first, first + len(block)), block)


def told(detector: Detector, state: Any) -> str:
    return repr((state_to_tree(state), detector.thresholds(state)))


def expected(detector: Detector, state: Any) -> str:
    return repr([threshold[:2] for threshold in detector.thresholds(state)])


def needs_several(detector: Detector) -> bool:
    """Whether no single value alarms, however far out, when the rule is ready."""
    state, _ = feed(detector, detector.init(series_of(detector)), settled(detector, 400))
    (threshold,) = detector.thresholds(state)
    assert threshold.steps_until_ready == 0
    return threshold.limit == math.inf


def regimes() -> dict[str, np.ndarray]:
    """Long series in which every kind of rule has something to see, and something to skim."""
    rng = np.random.default_rng(3)
    at = np.arange(1500)
    calm = 1.0 + 0.02 * rng.standard_normal(1500)
    outliers = np.where(rng.random(1500) < 0.02, 3.0, calm)
    return {
        "calm": calm,
        "tails": 1.0 + 0.02 * rng.standard_t(3, 1500),
        "falling": 4.0 * np.exp(-at / 200) + calm,
        "climbing": calm + np.clip(at - 700, 0, None) / 500,
        "level": calm + np.where(at >= 900, 2.0, 0.0),
        "lost": np.where(at < 1000, 3.0 * np.exp(-at / 100), 9.0) + calm,
        "outliers": outliers,
        "faster": np.where(np.isin(at, [900, 1050, 1150, 1210, 1250, 1270]), 4.0, calm),
        "broken": np.where(rng.random(1500) < 0.05, math.nan, outliers),
        "scale": 2.0 ** np.clip(16 - np.maximum(at - 1000, 0), -3, 16),
        "halving": np.exp2(16 - (at // 400) + (at % 400 >= 200)),
        "dead": np.where(at < 800, calm, 0.0),
        "wild": rng.standard_cauchy(1500),
        "coarse": np.round(calm, 2),
        "saturated": np.where(rng.random(1500) < 0.01, 0.3, 0.97),
    }


REGIMES = regimes()


@every
def test_it_is_a_final_frozen_configuration_with_a_reasoned_docstring(name: str) -> None:
    kind = DETECTORS[name]
    assert dataclasses.is_dataclass(kind)
    assert all(field.kw_only for field in dataclasses.fields(kind))
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().watches = ()
    doc = inspect.getdoc(kind) or ""
    assert "Reference:" in doc or "No source:" in doc
    assert ">>>" in doc
    assert "NaN" in doc
    assert kind().watches
    assert kind() == kind()
    assert hash(kind()) == hash(kind())


@every
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_splitting_gives_the_same_alarms_and_state(name: str, data: st.DataObject) -> None:
    detector = quick(name)
    num_series = data.draw(st.integers(1, 3))
    rows = data.draw(st.lists(st.tuples(*[VALUES] * num_series), max_size=40))
    rows = [
        [value] * num_series for value in settled(detector, data.draw(st.integers(0, 12)))
    ] + rows
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    block = np.array(rows, np.float64).reshape(len(rows), num_series)
    steps = np.cumsum(data.draw(st.lists(st.integers(1, 5), min_size=len(rows),
                                         max_size=len(rows)))).astype(np.int64)  # fmt: skip
    names = series_of(detector, num_series)
    whole, alarms = detector.update(detector.init(names), steps, block)
    parts: list[Alarm] = []
    state = detector.init(names)
    for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        state, found = detector.update(state, steps[low:high], block[low:high])
        parts += found
    assert repr(parts) == repr(alarms)
    assert told(detector, state) == told(detector, whole)
    live = detector.init(names)
    one_by_one: list[Alarm] = []
    for step, row in zip(steps.tolist(), block.tolist(), strict=True):
        live, found = detector.update_step(live, step, row)
        one_by_one += found
    assert repr(one_by_one) == repr(alarms)
    order = [(alarm.step, names.index(alarm.series)) for alarm in alarms]
    assert order == sorted(order)
    for alarm in alarms:
        assert alarm.onset_step <= alarm.step
        assert alarm.detector == name
        json.dumps(alarm.to_json(), allow_nan=False)


@every
def test_the_regimes_have_something_for_it(name: str) -> None:
    """Or the next test would compare silence with silence."""
    detector = DETECTORS[name]()
    told_of = 0
    for values in REGIMES.values():
        names = [f"{detector.watches[-1]}/blocks.{place}" for place in range(3)]
        state, alarms = feed(detector, detector.init(names), widened(values)[:1400])
        state, more = feed(detector, detector.resumed(state), widened(values)[1400:] * 2, 1400)
        told_of += bool(alarms or more)
    assert told_of


def widened(values: np.ndarray) -> np.ndarray:
    """Three columns, of which the second has outliers of its own."""
    factors = np.where(np.arange(len(values))[:, None] % 211 == 5, [1.0, 50.0, 1.0], 1.0)
    return values[:, None] * factors


@every
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_long_series_is_skimmed_as_if_seen_one_by_one(name: str, data: st.DataObject) -> None:
    """States and alarms agree to the last bit, wherever the blocks end and a restart falls."""
    detector = DETECTORS[name]()
    regime = data.draw(st.sampled_from(sorted(REGIMES)))
    length = len(REGIMES[regime])
    cuts = sorted(data.draw(st.lists(st.integers(1, length - 1), max_size=4, unique=True)))
    restart = data.draw(st.sampled_from([None, *cuts]))
    names = [f"{detector.watches[-1]}/blocks.{place}" for place in range(3)]
    values = widened(REGIMES[regime])
    steps = 3 * np.arange(length) + 1
    live, one_by_one = detector.init(names), []
    for row in range(length):
        if row == restart:
            live = detector.resumed(live)
        live, found = detector.update(live, steps[row : row + 1], values[row : row + 1])
        one_by_one += found
    state, parts = detector.init(names), []
    for low, high in zip([0, *cuts], [*cuts, length], strict=True):
        if low and low == restart:
            state = detector.resumed(state)
        state, found = detector.update(state, steps[low:high], values[low:high])
        parts += found
    assert repr(parts) == repr(one_by_one)
    assert told(detector, state) == told(detector, live)


@every
@settings(max_examples=30, deadline=None)
@given(first=st.lists(VALUES, max_size=30), rest=st.lists(VALUES, max_size=30))
def test_series_do_not_see_each_other(name: str, first: list, rest: list) -> None:
    detector = quick(name)
    if detector.looks_across:
        return  # the next test is for such a rule
    length = min(len(first), len(rest)) + 12
    columns = [(settled(detector, 12) + first)[:length], (settled(detector, 12) + rest)[:length]]
    names = series_of(detector, 2)
    _, together = feed(detector, detector.init(names), np.array(columns).T)
    alone = [feed(detector, detector.init([n]), c)[1] for n, c in zip(names, columns, strict=True)]
    assert sorted(map(repr, together)) == sorted(map(repr, alone[0] + alone[1]))


@every
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_order_of_the_columns_says_nothing(name: str, data: st.DataObject) -> None:
    detector = quick(name)
    names = [f"{detector.watches[0]}/{scope}" for scope in ("global", "embed", "blocks.0")]
    rows = data.draw(st.lists(st.tuples(*[VALUES] * 3), max_size=20))
    block = np.array([[1.0 + value, value, value] for value in settled(detector, 64)] + rows)
    order = data.draw(st.permutations(range(3)))
    _, alarms = feed(detector, detector.init(names), block)
    _, others = feed(detector, detector.init([names[at] for at in order]), block[:, order])
    assert sorted(map(repr, alarms)) == sorted(map(repr, others))


@every
@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.floats(0.8, 1.2), st.sampled_from([math.nan, math.inf, -math.inf])),
                min_size=1, max_size=30))  # fmt: skip
def test_a_non_finite_value_never_enters_a_baseline(name: str, values: list[float]) -> None:
    detector = quick(name)
    names = series_of(detector)
    mixed, _ = feed(detector, detector.init(names), values)
    clean, _ = feed(detector, detector.init(names), [v for v in values if math.isfinite(v)])
    assert repr(detector.thresholds(mixed)) == repr(detector.thresholds(clean))


@every
@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=40))
def test_a_flagged_value_never_enters_a_baseline_until_it_persists(
    name: str, values: list[float]
) -> None:
    detector = quick(name)
    state, alarms = feed(detector, detector.init(series_of(detector)), settled(detector))
    assert alarms == []
    for step, value in enumerate(values, 40):
        before = expected(detector, state)
        state, alarms = feed(detector, state, [value], step)
        assert len(alarms) <= 1
        if alarms and alarms[0].kind is not AlarmKind.SHIFT:
            assert expected(detector, state) == before


@every
def test_a_level_that_persists_is_accepted_and_reported_once(name: str) -> None:
    detector = quick(name)
    if needs_several(detector):
        state, _ = feed(detector, detector.init(series_of(detector)), settled(detector, 400))
        state, alarms = feed(detector, state, [100.0] * 400, 400)
        kinds = [alarm.kind for alarm in alarms if alarm.kind not in OF_CONSTANCY]
        assert kinds.count(AlarmKind.SHIFT) <= 1
        assert AlarmKind.SHIFT not in kinds[:-1]
        assert len(kinds) <= 5, "as many flagged values as it takes, and the shift"
        return
    state, _ = feed(detector, detector.init(series_of(detector)), settled(detector))
    state, alarms = feed(detector, state, [100.0] * 60, 40)
    kinds = [alarm.kind for alarm in alarms]
    if not alarms:  # the rule has no limit at all
        assert detector.thresholds(state)[0].limit == math.inf
        return
    assert kinds == [kinds[0]] * 3 + [AlarmKind.SHIFT]
    assert {alarm.onset_step for alarm in alarms} == {40}
    assert detector.thresholds(state)[0].baseline == pytest.approx(100.0, rel=0.1)
    _, alarms = feed(
        detector, detector.init(series_of(detector)), settled(detector) + [100.0] * 4 + [1e6]
    )
    assert [alarm.kind for alarm in alarms[-2:]] == [AlarmKind.SHIFT, kinds[0]]


@every
@settings(max_examples=30, deadline=None)
@given(st.lists(VALUES, max_size=30), st.lists(VALUES, max_size=30))
def test_a_copy_and_a_tree_go_on_identically_and_independently(
    name: str, before: list[float], after: list[float]
) -> None:
    detector = quick(name)
    names = series_of(detector)
    state, _ = feed(detector, detector.init(names), settled(detector, 8) + before)
    tree = json.loads(json.dumps(state_to_tree(state), default=np.ndarray.tolist))
    copied, was = copy_state(state), told(detector, state)
    live, alarms = feed(detector, state, after, 99)
    assert told(detector, copied) == was
    rebuilt = state_from_tree(detector.init(names), tree)
    assert told(detector, rebuilt) == was
    for other in (copied, rebuilt):
        again, same = feed(detector, other, after, 99)
        assert repr(same) == repr(alarms)
        assert told(detector, again) == told(detector, live)


@every
def test_warm_up_is_told_honestly(name: str) -> None:
    detector = rule(name)
    state = detector.init(series_of(detector))
    missing = detector.thresholds(state)[0].steps_until_ready
    assert missing <= 100
    for done in range(missing):
        (threshold,) = detector.thresholds(state)
        assert threshold.steps_until_ready == missing - done
        assert math.isnan(threshold.limit)
        _, alarms = feed(detector, copy_state(state), [1e9], 2 * done)
        assert alarms == []
        state, _ = feed(detector, state, [math.nan], 2 * done)
        assert detector.thresholds(state)[0].steps_until_ready == missing - done
        state, _ = feed(detector, state, [settled(detector, 100)[done]], 2 * done + 1)
    (threshold,) = detector.thresholds(state)
    assert threshold.steps_until_ready == 0
    assert not math.isnan(threshold.limit)


@every
def test_the_threshold_told_is_the_one_that_alarms(name: str) -> None:
    detector = rule(name)
    state, _ = feed(detector, detector.init(series_of(detector)), settled(detector, 100))
    (threshold,) = detector.thresholds(state)
    if math.isinf(threshold.limit):
        return
    at, beyond = threshold.limit, math.nextafter(threshold.limit, math.inf)
    assert feed(detector, copy_state(state), [at], 99)[1] == []
    (alarm,) = feed(detector, copy_state(state), [beyond], 99)[1]
    assert (alarm.threshold, alarm.baseline, alarm.value) == (at, threshold.baseline, beyond)


def leaves(tree: Any) -> int:
    if isinstance(tree, dict):
        return sum(map(leaves, tree.values()))
    if isinstance(tree, list):
        return sum(map(leaves, tree))
    return tree.size if isinstance(tree, np.ndarray) else 1


@every
def test_memory_is_bounded(name: str) -> None:
    detector = rule(name)
    rng = np.random.default_rng(0)
    kinds = {
        "noise": rng.normal(1.0, 0.1, 4000),
        "wild": rng.standard_cauchy(4000),
        "broken": np.where(rng.random(4000) < 0.9, math.nan, 1.0),
        "rising": np.exp(np.arange(4000) / 100),
    }
    for values in kinds.values():
        state, _ = feed(detector, detector.init(series_of(detector)), values[:2000])
        size = leaves(state_to_tree(state))
        state, _ = feed(detector, state, values[2000:], 2000)
        assert leaves(state_to_tree(state)) <= size + 500
        assert leaves(state_to_tree(state)) <= 2500


@every
def test_constant_series_are_quiet(name: str) -> None:
    detector = rule(name)
    for level in (0.0, -3.0, 2.5, 1e-30, 1e300, 1.7e308):
        _, alarms = feed(detector, detector.init(series_of(detector)), [level] * 300)
        assert [alarm for alarm in alarms if alarm.kind not in OF_CONSTANCY] == [], level
