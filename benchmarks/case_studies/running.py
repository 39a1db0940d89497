"""A small guarded training that breaks at a given step, and what its journal tells afterwards."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.diagnosis.runs import diagnosed_program
from foreshock import recipes
from foreshock.catalog import make, members
from foreshock.core.case import Case
from foreshock.core.cause import diagnose
from foreshock.core.detector import Alarm
from foreshock.core.errors import Halted
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program, Settings
from foreshock.core.signal import Level
from foreshock.driver import build, guard_for
from foreshock.guard import Guard

STRIKE_STEP: Final = 250
"""First step with the trouble: thresholds are warm, the loss has left its steep part."""
MAX_STEPS: Final = 460
"""What the schedule is made for; no run goes as far."""
DISK_STEPS: Final = 20

Made = Callable[[Settings], Program]


@dataclass(frozen=True, kw_only=True)
class Strike:
    """A fault that changes the program from some step on; once, whatever is undone afterwards.

    Attributes:
        step: the first step with it.
        fault: its name.
        settings: of the fault.
    """

    step: int
    fault: str
    settings: Mapping[str, Any]

    def change(self, program: Program) -> tuple[Program, str]:
        """The program with the fault, and what was done to it."""
        fault = make("faults", self.fault, **self.settings)
        assert isinstance(fault, ProgramFault)
        return fault.change(program, np.random.default_rng(0))


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run that is over.

    Attributes:
        guard: that watched it, closed.
        run_dir: where its journal lies.
        losses: by attempt and step.
        done_to_it: what each strike did, in words.
        judged: the likeliest causes at a step that was asked for, or nothing.
        cpu_secs: of this process.
    """

    guard: Guard
    run_dir: Path
    losses: Mapping[tuple[int, int], float]
    done_to_it: Sequence[str]
    judged: list[list[Any]]
    cpu_secs: float


def recipe() -> recipes.Recipe:
    """The standard one with every signal; without rules at the door; snapshots at once."""
    cadence = {"disk_steps": DISK_STEPS, "disk_keep": 12, "asynchronous": False}
    return recipes.standard({"rules": False, "level": Level.FULL, "cadence": cadence})


def settings(seed: int, **overrides: Any) -> Settings:
    """Of the small GPT of the injection matrix: two layers, 64 wide, on code and English."""
    return Settings(seed=seed, max_steps=MAX_STEPS, overrides=overrides)


def run(
    run_dir: Path,
    of: Settings,
    last_step: int,
    strikes: Sequence[Strike] = (),
    made: Made = diagnosed_program,
    judge_after: int | None = None,
) -> Ran:
    """Train under a Guard from the first step to the last, or until it halts.

    With `judge_after` what has been raised up to that step is diagnosed as if it were a case,
    though no Guard would act on it.
    """
    began = time.process_time()
    program = build(made, of)
    guard = guard_for(
        program, name="case_study", run_dir=run_dir, recipe=recipe(), max_steps=last_step
    )
    due, said = list(strikes), list[str]()
    losses: dict[tuple[int, int], float] = {}
    judged: list[list[Any]] = []
    with guard, suppress(Halted):
        program.model.train()
        for batch in guard:
            while due and guard.step_number + 1 == due[0].step:
                program, done = due.pop(0).change(program)
                said.append(done)
            loss = program.loss(program.model, batch)
            value = float(loss.total.detach())
            guard.step(loss)
            losses[guard.attempt, guard.step_number] = value
            if guard.step_number == judge_after:
                judged = _judged(guard, program)
    secs = time.process_time() - began
    return Ran(
        guard=guard,
        run_dir=run_dir,
        losses=losses,
        done_to_it=said,
        judged=judged,
        cpu_secs=secs,
    )


def _judged(guard: Guard, program: Program) -> list[list[Any]]:
    alarms = [Alarm.from_json(one["alarm"]) for one in guard.records if one["kind"] == "alarm"]
    case = Case(
        timeline=guard.monitor.timeline,
        alarms=tuple(one for one in alarms if one.onset_step >= STRIKE_STEP),
        facts={"precision": program.precision, "has_scaler": program.scaler is not None},
    )
    looks = [kind() for kind in members("symptoms").values()]
    causes = [kind() for kind in members("causes").values()]
    return top_three(diagnose(case, causes, looks).to_json()["candidates"])


def told(ran: Ran) -> dict[str, Any]:
    """What the Guard saw, said and decided, strict JSON."""
    guard = ran.guard
    return {
        "done_to_it": list(ran.done_to_it),
        "halted": guard.halted is not None,
        "last_step": guard.step_number,
        "attempts": guard.attempt,
        "committed_losses": _round(_last_losses(ran)),
        "first_alarms": _first_alarms(guard.records),
        "incidents": [_incident(one, guard.records) for one in guard.book.incidents],
        "cpu_secs": round(ran.cpu_secs, 1),
    }


def _incident(one: Any, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As it was first diagnosed, and what it came to."""
    plans = [each for each in records if each["kind"] == "plan"]
    first = next(each["diagnosis"] for each in plans if each["incident"] == one.id)
    moved = first["loss_moved_step"]
    lead = None if moved is None else moved - first["onset_step"]
    return {
        "onset_step": first["onset_step"],
        "alarm_step": first["alarm_step"],
        "loss_moved_step": first["loss_moved_step"],
        "moved_first": first["first_mover"],
        "lead_steps": lead,
        "cause": first["candidates"][0]["cause"],
        "first_diagnosis": top_three(first["candidates"]),
        "last_diagnosis": top_three(one.diagnosis["candidates"]),
        "decided": [_plan(record) for record in one.plans],
        "outcome": None if one.outcome is None else one.outcome.value,
        "closed_step": one.closed_step,
    }


def _plan(record: Any) -> dict[str, Any]:
    window = record.window
    return {
        "step": record.step,
        "rung": record.plan.rung,
        "back_to": record.plan.target_step,
        "actions": [call.name for call in record.plan.actions],
        "samples_of_window": None if window is None else window[1] - window[0],
        "why": record.plan.why,
    }


def top_three(candidates: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """The three likeliest causes with their probabilities, to three digits."""
    ranked = sorted(candidates, key=lambda one: -one["probability"])[:3]
    return [[one["cause"], round(one["probability"], 3)] for one in ranked]


def _first_alarms(records: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Of every detector and series in which something was raised, the first step; by step."""
    first: dict[tuple[str, str], int] = {}
    for record in records:
        if record["kind"] == "alarm" and record["attempt"] == 1:
            alarm = record["alarm"]
            first.setdefault((alarm["detector"], alarm["series"]), record["step"])
    ordered = sorted(first.items(), key=lambda one: one[1])
    return [[step, detector, series] for (detector, series), step in ordered][:12]


def _last_losses(ran: Ran) -> list[float]:
    """Means over ten steps to the end, of what was trained last at each step."""
    last = {step: loss for (_, step), loss in sorted(ran.losses.items())}
    steps = [step for step in sorted(last) if step <= ran.guard.step_number]
    return [float(np.mean([last[step] for step in steps[at : at + 10]])) for at in
            range(0, len(steps) - 9, 10)]  # fmt: skip


def _round(values: Sequence[float]) -> list[float | None]:
    return [round(one, 4) if math.isfinite(one) else None for one in values]


def excess(struck: Ran, healthy: Ran, first: int, last: int) -> float:
    """Mean of the loss over that of the healthy twin on the same steps of the first attempt."""
    steps = [(1, step) for step in range(first, last + 1) if (1, step) in struck.losses]
    return round(float(np.mean([struck.losses[one] - healthy.losses[one] for one in steps])), 4)


def last_of_first(ran: Ran) -> int:
    """The last step of the first attempt."""
    return max(step for attempt, step in ran.losses if attempt == 1)


def loss_is_worse_from(struck: Ran, healthy: Ran, limit: float = 0.02) -> int | None:
    """The first step of which the next ten have a mean loss `limit` over the healthy twin's."""
    for step in range(STRIKE_STEP, last_of_first(struck) - 8):
        if excess(struck, healthy, step, step + 9) > limit:
            return step
    return None


def level(ran: Ran, series: str, first: int, last: int) -> float | None:
    """Median of a series over steps of the first attempt, or None where it has no reading."""
    values = np.asarray(list(readings(ran, series, first, last).values()), dtype=np.float64)
    finite = values[np.isfinite(values)]
    return float(f"{np.median(finite):.5g}") if len(finite) else None


def first_above(ran: Ran, series: str, limit: float) -> int | None:
    """The first step from the strike on at which a series is at least `limit`."""
    found = readings(ran, series, STRIKE_STEP, last_of_first(ran))
    return next((step for step, value in found.items() if value >= limit), None)


def readings(ran: Ran, series: str, first: int, last: int) -> dict[int, float]:
    """Readings of the first attempt by step; those of a series that there is not are none."""
    block = ran_view(ran).readings(1, None, (first, last))
    if series not in block.series:
        return {}
    column = block.values[:, block.series.index(series)]
    return {int(step): float(value) for step, value in zip(block.steps, column, strict=True)}


def ran_view(ran: Ran) -> Any:
    """The run directory, as everything reads it."""
    from foreshock.durable import RealDisk  # noqa: PLC0415
    from foreshock.journal import Journal  # noqa: PLC0415

    return Journal.read(RealDisk(), ran.run_dir)
