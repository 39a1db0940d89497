"""What was different from one start to the next, and what records tell of a run's past."""

from typing import Any

import pytest

from foreshock.core.starts import STARTED, changes_between, history_of, start_of_record


def started(step: int, attempt: int = 1, **kinds: dict[str, str]) -> dict[str, Any]:
    return {"kind": STARTED, "attempt": attempt, "step": step, **kinds}


def plan(incident: int, step: int, rung: str) -> dict[str, Any]:
    return {"kind": "plan", "incident": incident, "step": step, "plan": {"rung": rung}}


def closed(incident: int, step: int, outcome: str) -> dict[str, Any]:
    return {"kind": "incident_closed", "incident": incident, "step": step, "outcome": outcome}


def test_what_came_went_and_changed_is_told_by_kind_and_name() -> None:
    before = {"package": {"torch": "2.12", "apex": "0.1"}, "environment": {"A": "1"}}
    after = {"package": {"torch": "2.13", "triton": "3"}, "environment": {"A": "1"}}
    found = changes_between(before, after, 40)
    assert [(one.kind, one.name, one.before, one.after) for one in found] == [
        ("package", "apex", "0.1", "not there"),
        ("package", "torch", "2.12", "2.13"),
        ("package", "triton", "not there", "3"),
    ]
    assert {one.step for one in found} == {40}


def test_a_process_that_went_on_as_the_one_before_is_no_event() -> None:
    same = {"package": {"torch": "2.13"}}
    records = [started(0, **same), started(50, 2, **same), started(70, 3, package={"torch": "3"})]
    history = history_of(records)
    assert history.starts == (0, 70)
    assert [one.name for one in history.changes] == ["torch"]
    assert history_of(records[:2]) == history_of(records[:1])


def test_later_steps_are_left_out() -> None:
    records = [
        started(0, package={"torch": "1"}),
        {"kind": "finding", "step": 5, "what": "rank 1 differs"},
        {"kind": "finding", "step": 9, "what": "rank 2 differs"},
        started(8, package={"torch": "2"}),
    ]
    assert history_of(records, 7).findings == ((5, "rank 1 differs"),)
    assert history_of(records, 7).changes == ()
    assert len(history_of(records).changes) == 1


@pytest.mark.parametrize(
    ("outcome", "last"), [("recovered", True), ("halted", False), (None, None)]
)
def test_every_plan_but_the_last_did_not_help(outcome: str | None, last: bool | None) -> None:
    records = [plan(1, 10, "skip"), plan(1, 12, "rollback")]
    if outcome is not None:
        records.append(closed(1, 60, outcome))
    found = history_of(records).interventions
    assert [(one.step, one.action, one.helped) for one in found] == [
        (10, "skip", False),
        (12, "rollback", last),
    ]


@pytest.mark.parametrize("damage", [{"package": ["torch"]}, {"package": {"torch": 3}}])
def test_a_record_that_no_run_writes_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"torch|expected"):
        start_of_record(started(0, **damage))
