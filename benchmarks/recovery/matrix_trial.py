"""One trial of the fault matrix: a copy of an anchor, a fault, the Guard, and what came of it."""

import math
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.recovery.anchors import ANCHOR_STEP, END_STEP, Anchor
from benchmarks.recovery.matrix_account import cost_of
from benchmarks.recovery.matrix_faults import Drawn
from benchmarks.recovery.matrix_program import (
    NAME,
    held_out_loss,
    is_finite,
    largest_weight,
    recipe,
)
from foreshock.core.errors import ForeshockError, Halted
from foreshock.core.incident import Incident
from foreshock.data.journalled import data_of
from foreshock.driver import guard_for
from foreshock.durable import RealDisk
from foreshock.giving_back import give_back
from foreshock.guard import Guard
from foreshock.journal import Journal
from foreshock.minimal import minimize


def run_trial(
    one: Anchor, drawn: Drawn, *, budget: int, keep: Path | None = None
) -> dict[str, Any]:
    """Let a fault strike a guarded run, and say what came of it; strict JSON.

    Args:
        one: where the run begins.
        drawn: what strikes it, once, whatever the Guard does about it.
        budget: replays allowed for what is given back afterwards, an incident.
        keep: where the run directory is moved to; by default it is removed.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = one.copy(Path(folder))
        program = one.program(drawn)
        guard = guard_for(
            program,
            name=NAME,
            run_dir=run_dir,
            recipe=recipe(),
            max_steps=END_STEP,
            resume=True,
            from_snapshot=one.snapshot_id,
        )
        begun = len(guard.records)
        executed = [(1, step) for step in range(1, ANCHOR_STEP + 1)]
        said = ""
        with guard, suppress(Halted):
            program.model.train()
            for batch in guard:
                if guard.step_number + 1 == drawn.step and not said:
                    said = drawn.strike(program) or "its data"
                loss = program.loss(program.model, batch)
                guard.step(loss)
                executed.append((guard.attempt, guard.step_number))
        end, largest = held_out_loss(program.model), largest_weight(program)
        cost = cost_of(guard.records[begun:], executed)
        held_before = guard.num_quarantined
        found = {
            incident.id: _given_back(one, drawn, run_dir, incident.id, budget)
            for incident in guard.book.incidents
            if _holds_data(incident)
        }
        result = {
            "anchor": one.seed,
            "drawn": drawn.to_json(),
            "done_to_it": said,
            "ended": guard.halted is None and guard.step_number == END_STEP,
            "halted": guard.halted,
            "last_step": guard.step_number,
            "finite": is_finite(program),
            "largest_weight": largest if math.isfinite(largest) else None,
            "held_out": end if math.isfinite(end) else None,
            "executed_steps": len(executed) - ANCHOR_STEP,
            "recomputed_steps": cost.recomputed,
            "skipped_steps": cost.skipped,
            "held_before": held_before,
            "held_after": _num_held(run_dir),
            "incidents": [
                _incident(incident, cost.undone.get(incident.id, 0), found.get(incident.id))
                for incident in guard.book.incidents
            ],
            "probed_episodes": _probed(guard, begun),
        }
        if keep is not None:
            shutil.move(run_dir, keep)
    return result


def _incident(one: Incident, undone: int, found: dict[str, Any] | None) -> dict[str, Any]:
    top = one.diagnosis["candidates"][0]
    return {
        "id": one.id,
        "onset_step": one.onset_step,
        "alarm_step": one.alarm_step,
        "first_mover": one.first_mover,
        "cause": one.cause,
        "last_cause": top["cause"],
        "rungs": [record.plan.rung for record in one.plans],
        "targets": [record.plan.target_step for record in one.plans],
        "outcome": None if one.outcome is None else one.outcome.value,
        "closed_step": one.closed_step,
        "undone_steps": undone,
        "given_back": found,
    }


def _probed(guard: Guard, begun: int) -> list[bool]:
    """Of each episode that healed by itself, whether the probe found harm."""
    return [one["harmed"] for one in guard.records[begun:] if one["kind"] == "episode_probed"]


def _holds_data(incident: Incident) -> bool:
    return any(call.name == "quarantine" for one in incident.plans for call in one.plan.actions)


def _given_back(
    one: Anchor, drawn: Drawn, run_dir: Path, incident: int, budget: int
) -> dict[str, Any]:
    """The minimal quarantine of one incident, carried out in the run's own journal."""
    try:
        found = minimize(run_dir, one.program(drawn), recipe(), incident=incident, budget=budget)
    except ForeshockError as error:
        return {"refused": str(error).replace(str(run_dir), "RUN")}
    give_back(run_dir, found)
    return {
        "verdict": found.verdict,
        "needed": len(found.needed),
        "undecided": len(found.undecided),
        "given_back": found.num_given_back,
        "reproduced": found.reproduced,
        "without_any": found.without_any,
        "exact": found.exact,
        "replays": found.num_replays,
        "steps_replayed": found.steps_replayed,
    }


def _num_held(run_dir: Path) -> int:
    """Samples that stay in quarantine: neither released nor about to be brought back."""
    view = Journal.read(RealDisk(), run_dir)
    _, ledger = data_of(view.identity["stream"], view.records)
    coming = [(entry.entry_id, ledger.coming_back(entry.entry_id)) for entry in ledger.entries]
    held = {key for name, back in coming for key in set(ledger.held_by(name)) - back}
    back = {key for _, back in coming for key in back}
    return len(held - back)
