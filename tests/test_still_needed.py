"""Which snapshots an incident may need again, as the journal tells."""

from typing import Any

import pytest

from foreshock.checkpoints import still_needed

PASSED = {"kind": "verification", "verification": {"passed": True, "probes": [{}]}}
AGAIN = {"kind": "verification", "verification": {"passed": True, "probes": [{}], "again": True}}
UNPROBED = {"kind": "verification", "verification": {"passed": True, "probes": []}}
FAILED = {"kind": "verification", "verification": {"passed": False, "probes": [{}], "again": True}}


def plan(incident: int, name: str | None) -> dict[str, Any]:
    calls = [] if name is None else [{"name": "rollback", "arguments": {"snapshot_id": name}}]
    return {"kind": "plan", "incident": incident, "plan": {"actions": calls}}


def back(name: str, action: str = "rollback") -> list[dict[str, Any]]:
    return [
        {"kind": "attempt_started", "snapshot": name},
        {"kind": "measured_before"},
        {"kind": "action_done", "action": action},
        {"kind": "plan_done"},
    ]


RESUMED = {"kind": "attempt_started", "snapshot": "resumed"}


@pytest.mark.parametrize(
    ("records", "names"),
    [
        ([], set()),
        ([plan(1, "a"), *back("a")], {"a"}),
        ([plan(1, "a"), *back("older")], {"a", "older"}),
        ([plan(1, "a"), *back("older"), RESUMED, PASSED, RESUMED], {"a", "older"}),
        ([plan(1, "a"), *back("a"), plan(1, "b"), *back("c")], {"a", "b", "c"}),
        ([plan(1, "a"), *back("older"), PASSED, plan(2, "b"), *back("b")], {"b"}),
        ([plan(1, "a"), *back("older"), PASSED, AGAIN, RESUMED], set()),
        ([plan(1, "a"), *back("older"), UNPROBED], set()),
        ([plan(1, "a"), *back("older"), FAILED], {"a", "older"}),
        ([RESUMED, plan(1, None), *back("x", "skip_update")], set()),
        ([plan(1, "a"), {"kind": "attempt_started"}, {"kind": "action_done"}], {"a"}),
    ],
)
def test_what_was_named_and_what_was_there_in_its_place(records, names) -> None:
    assert still_needed(records) == names
