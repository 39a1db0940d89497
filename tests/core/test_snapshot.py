"""Which snapshot to go back to."""

import json
import math

import pytest

from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import Health, SnapshotRef, choose_target, in_lineage

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
    assert choose_target([], 30) == (None, ())
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
