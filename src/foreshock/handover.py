"""The handover file: what was tried, how the run stands, how to go on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from foreshock.core.snapshot import SnapshotRef

HANDOVER: Final = "handover.md"
_MOST = 8


def handover_text(
    note: str,
    *,
    run_dir: Path,
    step: int,
    attempt: int,
    records: Sequence[Mapping[str, Any]],
    in_force: Sequence[str],
    num_quarantined: int,
    snapshots: Sequence[SnapshotRef],
) -> str:
    """Write the handover file.

    Args:
        note: why the run was halted, in the policy's words.
        run_dir: the run directory.
        step: where it stands.
        attempt: likewise.
        records: the journal, of which the actions of the last incident are told.
        in_force: what is overridden at the next step, in words.
        num_quarantined: distinct samples set aside.
        snapshots: that can be gone back to.
    """
    lines = ["# The run was halted", "", note, "", "## What was tried", ""]
    lines += _tried(records) or ["Nothing."]
    lines += ["", "## How it stands", "", f"- step {step}, attempt {attempt}"]
    lines += [f"- {num_quarantined} samples are set aside"]
    lines += [f"- from step {step + 1} on: {text}" for text in in_force]
    lines += ["", "## How to go on", ""]
    lines += [f"- {text}" for text in _ways_on(run_dir, snapshots)]
    return "\n".join(lines) + "\n"


def _tried(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the plans of the last incident did, one line an action."""
    plans = [record for record in records if record["kind"] == "plan"]
    if not plans:
        return []
    incident = plans[-1]["incident"]
    of_incident = {
        one["plan_id"]: one["plan"]["why"] for one in plans if one["incident"] == incident
    }
    lines: list[str] = []
    for plan_id, why in of_incident.items():
        lines.append(f"- plan {plan_id}: {why}")
        lines += [
            f"  - {record['action']}: {record['result']}"
            for record in records
            if record["kind"] == "action_done" and record["plan_id"] == plan_id
        ]
    return lines


def _ways_on(run_dir: Path, snapshots: Sequence[SnapshotRef]) -> list[str]:
    durable = sorted((ref for ref in snapshots if ref.durable), key=lambda ref: -ref.step)
    shown = ", ".join(
        f"{ref.id}{'' if ref.health.healthy else ' (not healthy)'}" for ref in durable[:_MOST]
    )
    return [
        f"look: `foreshock report {run_dir}`, `foreshock diagnose {run_dir}`",
        "go on as it is: start the same program with `--resume` (`Guard(…, resume=True)`); what "
        "is set aside and what is overridden holds on",
        f"snapshots on disk, newest first: {shown or 'none'}; those later than the one to go on "
        "from can be moved out of `snapshots/` before resuming",
    ]
