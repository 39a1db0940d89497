"""Incidents, folded from the journal."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.action import ActionCall, Plan
from foreshock.core.incident import IncidentBook, Outcome

DIAGNOSIS = {
    "onset_step": 95, "alarm_step": 97, "loss_moved_step": 98, "first_mover": "grad_norm/global",
    "candidates": [{"cause": "data_batch"}, {"cause": "unknown"}],
}  # fmt: skip


def alarm(step: int) -> dict[str, Any]:
    return {"series": "loss/global", "step": step, "value": "NaN"}


def plan(number: int, *, incident: int = 1, attempt: int = 1, steps: Any = (99,), back=True):
    ordered = Plan(
        rung="rollback" if back else "skip",
        why="w",
        actions=(ActionCall(name="halt", arguments={"note": "n"}),) * 2,
        target_step=90 if back else None,
    )
    return {
        "kind": "plan", "incident": incident, "plan_id": number, "attempt": attempt,
        "step": max(steps), "position": 8 * max(steps), "plan": ordered.to_json(),
        "diagnosis": DIAGNOSIS, "alarms": [alarm(step) for step in steps],
        "last_alarm_step": max(steps),
    }  # fmt: skip


def done(result: str) -> dict[str, Any]:
    return {"kind": "action_done", "result": result}


DONE = {"kind": "plan_done"}
VERIFIED = {"kind": "verification", "verification": {"passed": False}}
CLOSED = {"kind": "incident_closed", "outcome": "recovered", "step": 140, "judged_step": 130}
HISTORY = [
    {"kind": "run_started"}, {"kind": "alarm"}, plan(1), done("a"), done("b"), DONE,
    {"kind": "attempt_started"}, plan(2, attempt=2, steps=(99, 101)), done("c"), done("d"), DONE,
    VERIFIED, plan(3, attempt=3, steps=(120,)), done("e"), done("f"), DONE, VERIFIED, CLOSED,
    {"kind": "skip"}, plan(4, incident=2, attempt=4, steps=(205,), back=False), done("g"),
]  # fmt: skip


@given(st.integers(0, len(HISTORY)))
def test_folding_a_prefix_equals_taking_it_in_one_by_one(length: int) -> None:
    book = IncidentBook()
    for record in HISTORY[:length]:
        book.apply(record)
    folded = IncidentBook(json.loads(json.dumps(HISTORY[:length])))
    assert folded.incidents == book.incidents
    assert folded.num_plans == book.num_plans


def test_a_history_by_hand() -> None:
    book = IncidentBook(HISTORY)
    first, second = book.incidents
    assert [record.id for record in first.plans] == [1, 2, 3]
    assert [record.attempt for record in first.plans] == [1, 2, 3]
    assert [record.results for record in first.plans] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert (first.onset_step, first.alarm_step, first.last_alarm_step) == (95, 97, 120)
    assert (first.outcome, first.closed_step) == (Outcome.RECOVERED, 140)
    assert first.verification == {"passed": False}
    assert (first.cause, first.first_mover) == ("data_batch", "grad_norm/global")
    assert book.open is second
    assert (second.id, second.rollbacks) == (2, [])
    assert (book.num_plans, book.num_rollbacks) == (4, 3)
    assert book.unfinished_plan is second.plans[0]
    assert second.plans[0].done == 1


def test_a_plan_record_is_all_or_nothing() -> None:
    book = IncidentBook()
    book.apply(plan(1))
    (incident,) = book.incidents
    assert book.open is incident
    assert book.unfinished_plan is incident.plans[0]
    assert len(incident.plans[0].plan.actions) == 2
    assert incident.plans[0].done == 0


def test_what_is_finished_is_not_waiting() -> None:
    book = IncidentBook(HISTORY[:6])
    assert book.unfinished_plan is None
    assert book.open is not None
    assert IncidentBook(HISTORY[:18]).open is None


def test_an_alarm_that_two_plans_of_one_episode_tell_counts_once() -> None:
    book = IncidentBook([plan(1, steps=(97, 98), back=False), plan(2, steps=(97, 98, 99))])
    assert [one["step"] for one in book.incidents[0].alarms] == [97, 98, 99]


def test_an_alarm_that_comes_again_after_going_back_counts_again() -> None:
    book = IncidentBook([plan(1, steps=(97,)), plan(2, attempt=2, steps=(97, 98))])
    assert [one["step"] for one in book.incidents[0].alarms] == [97, 97, 98]


def test_a_later_plan_never_moves_the_last_alarm_back() -> None:
    book = IncidentBook([plan(1, steps=(120,)), plan(2, attempt=2, steps=(101,))])
    assert book.incidents[0].last_alarm_step == 120


@pytest.mark.parametrize("field", ["incident", "plan", "diagnosis", "alarms", "position"])
def test_a_record_that_lacks_a_field_leaves_the_book_as_it_was(field: str) -> None:
    broken = plan(1)
    del broken[field]
    book = IncidentBook()
    with pytest.raises(KeyError, match=field):
        book.apply(broken)
    assert (book.incidents, book.num_plans) == ([], 0)


def test_outcomes_are_known_words() -> None:
    with pytest.raises(ValueError, match="lost"):
        IncidentBook([plan(1), {**CLOSED, "outcome": "lost"}])
