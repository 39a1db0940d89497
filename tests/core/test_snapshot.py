"""Which snapshot to go back to."""

import dataclasses
import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import (
    Health,
    SnapshotRef,
    choose_target,
    in_lineage,
    steps_undone,
)

DOUBTED = Health(doubts=("grad_norm/global has grown 2.4-fold over its last 50 values",))
ILL = Health(concerns=("loss/global was out of range at step 9",))


def ref(step: int, *, attempt: int = 1, durable: bool = True, health: Health | None = None):
    kind = "disk" if durable else "memory"
    return SnapshotRef(
        id=f"{step}-a{attempt}-{kind}", attempt=attempt, step=step, position=8 * step,
        durable=durable, digest="d", health=health or Health(),
    )  # fmt: skip


def test_the_newest_healthy_one_before_the_onset() -> None:
    choice = choose_target([ref(0), ref(10), ref(20, health=ILL), ref(30), ref(40)], 30)
    assert choice.target == ref(10)
    told = {judged.ref.step: judged.objection for judged in choice.judged}
    assert [judged.ref.step for judged in choice.judged] == [40, 30, 20, 10, 0]
    assert "not before the onset at step 30" in told[40]
    assert "not before the onset at step 30" in told[30]
    assert told[20] == ILL.concerns[0]
    assert told[10] == ""
    assert "10-a1-disk, which was chosen" in told[0]


def test_the_last_clean_step_is_the_one_before_the_onset() -> None:
    assert choose_target([ref(29), ref(28)], 30).target == ref(29)


def test_memory_is_chosen_before_disk() -> None:
    choice = choose_target([ref(10), ref(10, durable=False)], 30)
    assert choice.target == ref(10, durable=False)
    assert [bool(judged.objection) for judged in choice.judged] == [False, True]


def test_further_back_counts_distinct_steps_and_ends_at_the_oldest() -> None:
    refs = [ref(0), ref(10), ref(20), ref(20, durable=False), ref(25, health=ILL), ref(40)]
    steps = [choose_target(refs, 30, older_by).target for older_by in range(5)]
    assert [one.step if one else None for one in steps] == [20, 10, 0, 0, 0]
    told = {judged.ref.id: judged.objection for judged in choose_target(refs, 30, 1).judged}
    assert "failed before" in told["20-a1-memory"]
    assert told["10-a1-disk"] == ""


def test_none_where_none_fits() -> None:
    assert choose_target([], 30) == (None, (), "")
    choice = choose_target([ref(30), ref(20, health=ILL)], 30, 3)
    assert choice.target is None
    assert all(judged.objection for judged in choice.judged)


def test_the_order_given_does_not_matter() -> None:
    refs = [ref(0), ref(10), ref(10, durable=False), ref(20)]
    assert choose_target(refs, 20) == choose_target(refs[::-1], 20)


def test_a_snapshot_that_was_undone_is_out_of_the_lineage_for_good() -> None:
    history = [(1, 0), (2, 30), (3, 50), (4, 20)]
    assert in_lineage(ref(20, attempt=1), history)
    assert not in_lineage(ref(30, attempt=1), history)
    assert not in_lineage(ref(40, attempt=2), history)
    assert in_lineage(ref(40, attempt=4), history)
    assert in_lineage(ref(40, attempt=2), history[:3])
    assert not in_lineage(ref(40, attempt=1), history[:3])


def test_a_label_survives_strict_json() -> None:
    figures = {"loss/global": math.nan, "a/b": math.inf, "c/d": -math.inf, "e/f": 1.5}
    one = ref(7, health=Health(concerns=("x",), figures=figures))
    back = SnapshotRef.from_json(json.loads(json.dumps(one.to_json(), allow_nan=False)))
    assert repr(back) == repr(one)
    assert not back.health.healthy


@pytest.mark.parametrize(
    "damage",
    [
        {"step": "x"}, {"step": None}, {"health": None}, {"health": {"concerns": []}},
        {"health": {"concerns": [], "figures": {"a": "1e3"}}},
        {"health": {"concerns": [], "figures": {"a": 10**400}}},
        {"health": {"concerns": [], "figures": []}},
    ],
)  # fmt: skip
def test_a_damaged_label_is_one_error(damage: dict) -> None:
    with pytest.raises(SnapshotError, match="label is damaged"):
        SnapshotRef.from_json({**ref(7).to_json(), **damage})


def test_a_label_that_lacks_a_field_is_the_same_error() -> None:
    fields = ref(7).to_json()
    for name in fields:
        with pytest.raises(SnapshotError, match="label is damaged"):
            SnapshotRef.from_json({key: fields[key] for key in fields if key != name})


# ---- what it costs ------------------------------------------------------------------


def gone(step: int, trained_from: int, health: Health | None = None) -> SnapshotRef:
    one = ref(step, durable=False, health=health)
    return dataclasses.replace(one, trained_from=trained_from)


def test_a_mere_doubt_costs_less_than_the_way_from_the_run_s_start() -> None:
    """The one free of doubt was in memory when the process died; on disk is one in doubt."""
    there = [ref(0), ref(100, health=DOUBTED), ref(90, durable=False)]
    assert choose_target(there, 104).target == ref(100, health=DOUBTED)  # 14 is over 3 times 4
    assert choose_target(there, 110).target == ref(90, durable=False)
    lost = [ref(0), ref(100, health=DOUBTED), gone(90, 0)]
    choice = choose_target(lost, 110)
    assert choice.target == ref(100, health=DOUBTED)
    assert "would undo 110 steps instead of 10" in choice.why
    assert DOUBTED.doubts[0] in choice.why
    told = {judged.ref.step: judged.objection for judged in choice.judged}
    assert "would undo 110 steps instead of 10" in told[90]
    assert told[100] == ""


def test_one_that_is_trained_again_from_near_is_as_good_as_there() -> None:
    lost = [ref(0), ref(80), gone(90, 80), gone(100, 80, DOUBTED)]
    assert choose_target(lost, 110).target == gone(90, 80)


def test_the_start_is_free_of_doubt_for_want_of_readings() -> None:
    refs = [ref(0), ref(100, health=DOUBTED)]
    assert choose_target(refs, 150).target == ref(100, health=DOUBTED)
    assert "none from before the onset is free of doubt" in choose_target(refs, 150).why
    assert choose_target(refs, 150, 1).target == ref(0)


def test_further_back_comes_to_the_start_last() -> None:
    refs = [ref(step) for step in range(0, 101, 10)]
    steps = [choose_target(refs, 101, tries).target.step for tries in range(7)]
    assert steps == [100, 90, 80, 70, 30, 10, 0]


@pytest.mark.parametrize(
    ("refs", "tries", "why"),
    [
        ([ref(0), ref(20)], 0, "the newest healthy one from before the onset"),
        ([ref(0), ref(20), ref(25, health=DOUBTED)], 0, "the newest free of doubt"),
        ([ref(0), ref(20), ref(29, health=DOUBTED)], 0, "would undo 10 steps instead of 1"),
        ([ref(0), ref(20)], 1, "older than the 1 from which recoveries have failed"),
    ],
)
def test_the_choice_says_why(refs, tries, why) -> None:
    assert why in choose_target(refs, 30, tries).why


def test_the_way_is_the_same_but_not_the_distance() -> None:
    choice = choose_target([ref(0), gone(20, 0), gone(29, 0, DOUBTED)], 30)
    assert choice.target == gone(29, 0, DOUBTED)  # as it would be if all were there
    assert "lies 10 steps before the onset instead of 1" in choice.why


STATES = st.tuples(st.integers(0, 40), st.sampled_from([Health(), DOUBTED, ILL]), st.booleans())
HISTORIES = st.lists(STATES, max_size=14, unique_by=lambda one: one[0])


def history(states) -> list[SnapshotRef]:
    """Snapshots of some steps; of those that are gone, from which one they would be trained."""
    there = [step for step, _, here in states if here] or [0]
    found = []
    for step, health, here in states:
        begun = max((one for one in there if one <= step), default=None)
        if here:
            found.append(ref(step, health=health))
        elif begun is not None:
            found.append(gone(step, begun, health))
    return found


@given(HISTORIES, st.integers(1, 41))
def test_each_further_one_is_older_and_the_start_comes_last(states, onset) -> None:
    refs = history(states)
    fit = sorted({one.step for one in refs if one.step < onset and one.health.healthy})
    targets = [choose_target(refs, onset, tries).target for tries in range(len(refs) + 2)]
    if not fit:
        assert set(targets) == {None}
        return
    steps = [one.step for one in targets if one is not None]
    assert len(steps) == len(targets) and set(steps) <= set(fit)
    for last, then in itertools.pairwise(steps):
        assert then < last or last == then == fit[0]  # never twice, until nothing older is left
        older = [step for step in fit if 0 < step < last]
        assert then or not older  # the start only where nothing else is
    assert steps[-1] == fit[0]
    assert steps[0] or fit == [0]


@given(HISTORIES, st.integers(1, 41))
def test_no_doubt_is_worth_more_than_three_times_the_way(states, onset) -> None:
    refs = history(states)
    target = choose_target(refs, onset).target
    if target is None:
        return
    fit = [one for one in refs if one.step < onset and one.health.healthy]
    newest = max(fit, key=lambda one: one.step)
    assert steps_undone(target, onset) <= 3 * steps_undone(newest, onset)
    assert onset - target.step <= 3 * (onset - newest.step)
    if target is not newest:
        assert newest.health.doubts and not target.health.doubts
        assert all(one.health.doubts for one in fit if one.step > target.step)


@given(HISTORIES, st.integers(1, 41), st.integers(0, 5))
def test_what_is_gone_changes_nothing_where_nothing_is_in_doubt(states, onset, tries) -> None:
    """A run that was killed decides as one that was not."""
    sure = [(step, ILL if health is ILL else Health(), here) for step, health, here in states]
    there = [ref(one.step, health=one.health) for one in history(sure)]
    lost = choose_target(history(sure), onset, tries).target
    kept = choose_target(there, onset, tries).target
    assert (lost and lost.step) == (kept and kept.step)


def test_where_it_is_trained_from_is_not_kept() -> None:
    fields = gone(90, 80).to_json()
    assert "trained_from" not in fields
    assert SnapshotRef.from_json(fields) == ref(90, durable=False)
