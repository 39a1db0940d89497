"""Records of incidents that were recovered from, as a run writes them, by hand."""

from typing import Any

from foreshock.core.action import ActionCall, Plan
from foreshock.core.minimal import Minimal, Tokens
from foreshock.data.ledger import LedgerEntry

Told = list[tuple[str, dict[str, Any]]]

CANDIDATE = {
    "cause": "data_batch", "probability": 1.0, "evidence": [], "settled_by": "",
    "data_may_be_at_fault": True,
}  # fmt: skip
DIAGNOSIS = {
    "onset_step": 6, "alarm_step": 7, "loss_moved_step": 7,
    "first_mover": "loss/global", "path": [], "candidates": [CANDIDATE],
}  # fmt: skip


def planned(incident: int, plan_id: int, window: tuple[int, int], step: int = 7) -> Told:
    """A plan that sets a window aside, carried out."""
    start, stop = window
    arguments = {"start": start, "stop": stop, "reason": "spike"}
    plan = Plan(
        rung="rollback",
        why="spike",
        actions=(ActionCall(name="quarantine", arguments=arguments),),
        target_step=step - 3,
    )
    entry = LedgerEntry(entry_id=f"plan{plan_id}/0", reason="spike", window=window)
    fields = {
        "incident": incident, "plan_id": plan_id, "position": stop, "plan": plan.to_json(),
        "diagnosis": DIAGNOSIS, "alarms": [], "last_alarm_step": step,
    }  # fmt: skip
    done = {"plan_id": plan_id, "action": "quarantine", "result": "set aside"}
    return [
        ("plan", fields),
        ("quarantined", {"entry": entry.to_json(), "key": entry.entry_id}),
        ("action_done", done),
        ("plan_done", {"plan_id": plan_id}),
    ]


def closed(incident: int, outcome: str = "recovered") -> Told:
    return [("incident_closed", {"incident": incident, "outcome": outcome, "judged_step": 9})]


def reopened(incident: int) -> Told:
    verification = {"passed": False, "again": True, "reopens": True, "probes": [], "note": ""}
    return [("verification", {"incident": incident, "verification": verification})]


def finding(incident: int, given_back: dict[str, Any], **change: Any) -> Minimal:
    """What a search found: by default, that nothing else is needed."""
    fields: dict[str, Any] = {
        "incident": incident,
        "num_plans": 1,
        "verdict": "each of the samples that stay is needed to bring it back",
        "needed": (),
        "undecided": (),
        "given_back": given_back,
        "minimal": True,
        "reproduced": True,
        "without_any": False,
        "exact": True,
        "snapshot": "00000004-a00001",
        "num_replays": 9,
        "budget": 64,
        "steps_replayed": 99,
        "tokens": Tokens.of(12.0, samples_per_step=4, steps_undone=3, held_before=16, held_after=4),
    }
    return Minimal(**{**fields, **change})
