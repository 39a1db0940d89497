"""What is known of a lineage when a run passes it for the second time."""

import pytest

from foreshock.core.incident import IncidentBook

DIAGNOSIS = {
    "onset_step": 38,
    "alarm_step": 40,
    "loss_moved_step": None,
    "first_mover": "loss/global",
    "candidates": [{"cause": "data_batch"}],
}


def planned(step, target, *, plan_id=1):
    plan = {"rung": "x", "why": "", "actions": [], "target_step": target}
    return {
        "kind": "plan",
        "attempt": 1,
        "step": step,
        "incident": 1,
        "plan_id": plan_id,
        "position": 0,
        "plan": plan,
        "diagnosis": DIAGNOSIS,
        "alarms": [],
        "last_alarm_step": step,
    }


def closed(step, judged, outcome="recovered"):
    return {
        "kind": "incident_closed",
        "attempt": 1,
        "step": step,
        "incident": 1,
        "outcome": outcome,
        "judged_step": judged,
    }


@pytest.mark.parametrize(
    ("records", "judged"),
    [
        ([], 0),
        ([planned(40, None)], 40),  # a skip: what came up to it stands
        ([planned(40, 35)], 35),  # a rollback: what came after its target is new
        ([planned(40, 35), planned(37, 30, plan_id=2)], 30),
        ([planned(40, 35), closed(52, 51)], 51),
        ([planned(40, None), closed(40, 40, "halted")], 0),  # whoever resumes it begins anew
    ],
)
def test_steps_up_to_the_last_decision_are_judged_once(records, judged):
    assert IncidentBook(records).judged_step == judged


@pytest.mark.parametrize(
    ("records", "covered"),
    [
        ([planned(40, None)], range(40, 99)),
        ([planned(40, 35)], range(36, 99)),
        ([planned(40, 35), planned(37, 30, plan_id=2)], range(31, 99)),
        ([planned(40, 35), closed(52, 51)], range(36, 52)),
    ],
)
def test_a_snapshot_is_judged_by_its_step_and_not_by_the_present(records, covered):
    (incident,) = IncidentBook(records).incidents
    assert [step for step in range(99) if incident.covers(step)] == list(covered)
