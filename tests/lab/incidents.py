"""An incident as the journal tells it, for tests of what is made of it."""

from typing import Any

from foreshock.core.incident import IncidentBook


def recovered_incident(*, digest_equal: bool, probes_passed: bool) -> tuple[Any, list[dict]]:
    """A data incident at step 20, gone back to step 10, closed as recovered."""
    stamp = {"attempt": 1, "step": 22}
    candidate = {
        "cause": "data_batch",
        "probability": 0.9,
        "data_may_be_at_fault": True,
        "settled_by": "a replay",
        "evidence": [],
    }
    diagnosis = {
        "onset_step": 20,
        "alarm_step": 20,
        "loss_moved_step": 20,
        "first_mover": "loss/global",
        "candidates": [candidate],
        "path": [],
    }
    plan = {
        "rung": "rollback",
        "why": "because",
        "target_step": 10,
        "actions": [
            {"name": "quarantine", "arguments": {"start": 160, "stop": 224, "reason": "r"}},
            {"name": "rollback", "arguments": {"snapshot_id": "s", "step": 10}},
        ],
    }
    window = {"entry_id": "plan1/0", "window": [160, 224]}
    digest = f"back; digest of the restored state equal: {digest_equal}"
    verification = {"passed": probes_passed, "probes": []}
    records: list[dict[str, Any]] = [
        {
            **stamp,
            "kind": "plan",
            "incident": 1,
            "plan_id": 1,
            "position": 224,
            "plan": plan,
            "diagnosis": diagnosis,
            "alarms": [],
            "last_alarm_step": 22,
        },
        {**stamp, "kind": "quarantined", "key": "plan1/0", "entry": window},
        {**stamp, "kind": "action_done", "plan_id": 1, "action": "quarantine", "result": "64"},
        {**stamp, "kind": "action_done", "plan_id": 1, "action": "rollback", "result": digest},
        {**stamp, "kind": "plan_done", "plan_id": 1},
        {**stamp, "kind": "verification", "incident": 1, "verification": verification},
        {
            **stamp,
            "kind": "incident_closed",
            "incident": 1,
            "outcome": "recovered",
            "judged_step": 40,
        },
    ]
    return IncidentBook(records).incidents[0], records
