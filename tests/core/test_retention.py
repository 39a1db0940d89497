"""Which snapshots are kept: what holds for every history."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.retention import Retention, Stored, retain, why_due
from foreshock.core.snapshot import Health, SnapshotRef, in_lineage

ILL = Health(concerns=("hurt",))
WELL = Health()


def stored(
    step: int, *, healthy: bool = True, attempt: int = 1, size: int = 10, health: Health = WELL
) -> Stored:
    ref = SnapshotRef(
        id=f"{step:08d}-a{attempt:05d}", attempt=attempt, step=step, position=0, durable=True,
        digest="", health=health if healthy else ILL,
    )  # fmt: skip
    return Stored(ref, size)


def kept(fates) -> list[int]:
    return sorted(fate.ref.step for fate in fates if fate.kept)


def reach(rule: Retention, age: int) -> float:
    return max(rule.anchor_factor * age, age + rule.anchor_steps)


RULES = st.builds(
    Retention,
    newest=st.integers(1, 6),
    anchor_steps=st.integers(0, 60),
    anchor_factor=st.floats(1.0, 8.0),
    budget_bytes=st.just(0),
)
HISTORIES = st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=80)


@given(HISTORIES, RULES)
@settings(deadline=None, max_examples=150)
def test_a_run_that_thins_out_as_it_goes(history, rule) -> None:
    """Whatever was healthy once has a healthy one of about its age, as long as the run lasts."""
    step, alive, ever = 0, [stored(0)], [stored(0)]
    for number, (ahead, healthy) in enumerate(history, start=2):
        step += ahead
        alive.append(stored(step, healthy=healthy))
        ever.append(alive[-1])
        fates = retain(alive, rule)
        assert [fate.ref.step for fate in fates] == sorted(s.ref.step for s in alive)[::-1]
        assert all(fate.why for fate in fates)
        left = set(kept(fates))
        alive = [one for one in alive if one.ref.step in left]
        assert {0, step} <= left
        assert left.issuperset(one.ref.step for one in ever[-rule.newest :])
        well = [one.ref.step for one in ever if one.ref.health.healthy]
        assert well[-1] in left
        for one in well:
            age = step - one
            near = [s for s in left & set(well) if age <= step - s <= reach(rule, age)]
            assert near, (one, left)
        ill = left - set(well)
        assert len(ill) <= rule.newest
        if rule.anchor_factor >= 2 and not rule.anchor_steps:
            assert len(left) <= rule.newest + 2 + 2 * (2 + number.bit_length() + 5)


def test_anchors_by_hand() -> None:
    rule = Retention(newest=2, anchor_steps=100, anchor_factor=3.0)
    left = kept(retain([stored(step) for step in range(0, 2001, 100)], rule))
    # From 1900 (age 100) up to age 300, then 900, then 2700.
    assert left == [0, 1100, 1700, 1900, 2000]


def test_twenty_hours_keep_a_handful() -> None:
    rule, alive = Retention(), list[Stored]()
    for step in range(0, 1_000_001, 500):
        alive.append(stored(step))
        left = set(kept(retain(alive, rule)))
        alive = [one for one in alive if one.ref.step in left]
    assert len(alive) <= 5 + 14


@given(HISTORIES, RULES, st.integers(0, 400), st.randoms())
@settings(deadline=None, max_examples=150)
def test_a_budget_and_any_order(history, rule, budget, rng) -> None:
    step, alive = 0, [stored(0, size=7)]
    for ahead, healthy in history:
        step += ahead
        alive.append(stored(step, healthy=healthy, size=1 + step % 13))
    free = retain(alive, rule)
    fates = retain(alive, rule, room_bytes=budget)
    shuffled = list(alive)
    rng.shuffle(shuffled)
    assert retain(shuffled, rule, room_bytes=budget) == fates
    sizes = {one.ref.id: one.size_bytes for one in alive}
    left = [fate.ref for fate in fates if fate.kept]
    well = [one.ref.step for one in alive if one.ref.health.healthy]
    essential = {0, step, well[-1]}
    assert essential <= {ref.step for ref in left} <= set(kept(free))
    total = sum(sizes[ref.id] for ref in left)
    assert total <= budget or {ref.step for ref in left} == essential
    if left != [fate.ref for fate in free if fate.kept]:  # no more went than had to
        gone = [fate.ref for fate in fates if not fate.kept and fate.why.startswith("beyond")]
        assert total + max(sizes[ref.id] for ref in gone) > budget


def test_the_budget_and_the_room_hold_together() -> None:
    alive = [stored(step) for step in range(0, 50, 10)]
    rule = Retention(newest=5, budget_bytes=40)
    assert len(kept(retain(alive, rule))) == 4
    assert len(kept(retain(alive, rule, room_bytes=30))) == 3
    assert len(kept(retain(alive, rule, room_bytes=90))) == 4
    assert kept(retain(alive, rule, room_bytes=0)) == [0, 40]


def test_the_old_ones_of_the_newest_go_first() -> None:
    alive = [stored(step) for step in range(0, 60, 10)]
    fates = retain(alive, Retention(newest=5), room_bytes=40)
    assert kept(fates) == [0, 30, 40, 50]


def test_what_was_undone_goes_whatever_it_is() -> None:
    rollbacks = [(1, 0), (2, 20)]
    alive = [stored(0), stored(20), stored(30), stored(25, attempt=2)]
    fates = retain(alive, Retention(newest=1), alive=lambda ref: in_lineage(ref, rollbacks))
    assert kept(fates) == [0, 25]
    told = {fate.ref.step: fate.why for fate in fates}
    assert "undone" in told[30]
    assert told[0] == "the run's start"


def test_nothing_at_all() -> None:
    assert retain([], Retention()) == []
    assert retain([], Retention(), room_bytes=0) == []


@pytest.mark.parametrize(
    ("step", "secs", "minutes", "why"),
    [
        (0, 0.0, 30.0, "steps"), (100, 1e9, 30.0, "steps"), (99, 1799.9, 30.0, ""),
        (99, 1800.0, 30.0, "minutes"), (99, 1e9, 0.0, ""), (1, 6.0, 0.1, "minutes"),
    ],
)  # fmt: skip
def test_due_by_either(step: int, secs: float, minutes: float, why: str) -> None:
    assert why_due(step, 100, secs, minutes) == why


def test_what_an_incident_may_go_back_to_stays_while_there_is_room() -> None:
    history = [stored(step) for step in range(0, 100, 10)]
    rule = Retention(newest=2, anchor_steps=1000)
    assert kept(retain(history, rule)) == [0, 80, 90]
    needed = {"00000030-a00001", "00000040-a00001"}
    fates = retain(history, rule, needed=needed)
    assert kept(fates) == [0, 30, 40, 80, 90]
    assert {fate.why for fate in fates if fate.ref.id in needed} == {
        "an incident may go back to it again"
    }
    assert kept(retain(history, rule, needed=needed, room_bytes=30)) == [0, 80, 90]


def test_the_newest_free_of_doubt_stays_where_the_newest_are_in_doubt() -> None:
    doubted = Health(doubts=("grad_norm/global has grown",))
    alive = [stored(step) for step in range(0, 50, 10)]
    alive += [stored(step, health=doubted) for step in range(50, 100, 10)]
    fates = retain(alive, Retention(newest=2, anchor_steps=1000))
    assert kept(fates) == [0, 40, 80, 90]
    assert {fate.why for fate in fates if fate.ref.step == 40} == {
        "the newest that is free of doubt"
    }
    # It is not worth more than the newest healthy one and the start, where room is short.
    assert kept(retain(alive, Retention(newest=2), room_bytes=20)) == [0, 90]


STRETCHES = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=12)


@given(STRETCHES, st.integers(2, 6), st.integers(1, 4))
@settings(deadline=None, max_examples=150)
def test_something_healthy_is_always_on_disk_and_near(stretches, every, newest) -> None:
    """Snapshots in memory at every step, on disk at every `every`th, and where one is owed.

    However health comes and goes: the newest healthy state that there ever was is at most a
    cadence younger than the newest on disk, and what came before is thinned out by the rule.
    """
    rule = Retention(newest=newest, anchor_steps=0, anchor_factor=4.0)
    alive, step, last_healthy = [stored(0)], 0, 0
    for well, ill in stretches:
        for healthy in [True] * well + [False] * ill:
            step += 1
            last_healthy = step if healthy else last_healthy
            owed = healthy and not alive[-1].ref.health.healthy
            if step % every == 0 or owed:
                alive.append(stored(step, healthy=healthy))
                left = set(kept(retain(alive, rule)))
                alive = [one for one in alive if one.ref.step in left]
            there = max(one.ref.step for one in alive if one.ref.health.healthy)
            assert last_healthy - there < every
