"""What tests of ranks hold a disturbed run against: the same run that nobody disturbed."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.guard.ranked import SHORT, Ended, counted, killed, train
from tests.ranks.outcomes import Outcome, outcomes

TOLERANCE = 2e-4
"""Relative, of losses: sums in another order, through Adam, over 60 steps."""


@functools.cache
def untouched(
    world: int, short: bool = True, layout: str = "ddp"
) -> tuple[Ended, tuple[str, ...], tuple[int, ...]]:
    """A run that nobody disturbed, its meetings, and how often each rank changed its disk."""
    with tempfile.TemporaryDirectory() as folder:
        options = {**(SHORT if short else {}), "layout": layout}
        found = outcomes(counted, world, Path(folder) / "run", options)
        assert [one.error for one in found] == [""] * world
        first = found[0].result
        assert all(one.result[0].digest == first[0].digest for one in found)
        assert all(one.result[1] == first[1] for one in found)
        assert all(told(one.result[0]) == told(first[0]) for one in found)
        return first[0], tuple(first[1]), tuple(one.result[2] for one in found)


def told(ended: Ended) -> list[dict[str, Any]]:
    """Everything that was decided, without the time."""
    return [{key: value for key, value in one.items() if key != "time"} for one in ended.records]


def decisions(ended: Ended) -> list[Any]:
    """What was decided, and where; without what only rounding changes."""
    found: list[Any] = []
    for record in ended.records:
        kind, at = record["kind"], (record["attempt"], record["step"])
        match kind:
            case "plan":
                plan = record["plan"]
                calls = [(one["name"], one["arguments"].get("step")) for one in plan["actions"]]
                found.append((kind, at, plan["rung"], plan["target_step"], calls))
            case "quarantined" | "rejected":
                found.append((kind, at, record["entry"]["window"], record["entry"]["ids"]))
            case "alarm":
                found.append((kind, at, record["alarm"]["series"], record["alarm"]["kind"]))
            case "verification":
                found.append((kind, at, record["verification"]["passed"]))
            case "incident_closed":
                found.append((kind, at, record["outcome"]))
            case "attempt_started" | "action_done" | "plan_done":
                found.append((kind, at))
            case _:
                pass
    return found


def journal(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "decisions.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def stopped(found: list[Outcome], *, but: int | None = None) -> list[str]:
    """What every rank that is left said; each must have stopped by itself, with an error."""
    left = [one for rank, one in enumerate(found) if rank != but]
    assert [one.code for one in left] == [1] * len(left), [one.trace for one in left]
    assert all(one.error.startswith("RankError: ") for one in left), [one.error for one in left]
    return [one.error for one in left]


def kill_and_restart(
    run_dir: Path, world: int, victim: int, where: str, number: int, layout: str = "ddp"
) -> None:
    """Kill a rank at a moment; what goes on from disk must end as if nothing had been."""
    expected, *_ = untouched(world, layout=layout)
    options = {**SHORT, "layout": layout}
    found = outcomes(killed, world, run_dir, victim, where, number, options)
    if found[victim].code == 0:  # its n-th call never came
        assert all(one.result.digest == expected.digest for one in found)
        return
    assert found[victim].code == -9, found[victim]
    for rank, one in enumerate(found):
        # A rank whose last meeting was over is done; the others stop, and none hangs.
        assert rank == victim or one.code == 0 or one.error.startswith("RankError"), one
    again = outcomes(train_again, world, run_dir, options)
    assert [one.error for one in again] == [""] * world, [one.trace for one in again]
    for one in again:
        assert one.result.digest == expected.digest
        assert one.result.quarantined == expected.quarantined
    plans = [one["plan_id"] for one in journal(run_dir) if one["kind"] == "plan"]
    assert plans == [one["plan_id"] for one in expected.records if one["kind"] == "plan"]


def train_again(rank: int, world: int, run_dir: Path, options: dict[str, Any]) -> Ended:
    return train(rank, world, run_dir, **options)


def kill_anywhere(root: Path, world: int, seed: int, num_trials: int, layout: str = "ddp") -> None:
    """Kill a random rank at random moments: of its meetings, its steps, its writing."""
    rng = np.random.default_rng(seed)
    _, meetings, changes = untouched(world, layout=layout)
    for trial in range(num_trials):
        victim = int(rng.integers(world))
        writes = victim == 0 or layout != "ddp"
        where = str(rng.choice(["meeting", "step", "disk"] if writes else ["meeting", "step"]))
        most = {"meeting": len(meetings), "step": 25, "disk": changes[victim]}[where]
        number = int(rng.integers(1, most))
        kill_and_restart(root / f"run{trial}", world, victim, where, number, layout)


def killed_in_a_rollback(run_dir: Path, victim: int, layout: str = "ddp") -> None:
    """Kill one of two ranks in a rollback; the other tells in the journal who it was."""
    _, meetings, _ = untouched(2, layout=layout)
    plan = next(at for at, what in enumerate(meetings) if what.startswith("plan"))
    kill_and_restart(run_dir, 2, victim, "meeting", plan + 3, layout)
    lost = [one for one in journal(run_dir) if one["kind"] == "ranks_lost"]
    assert [one["ranks"] for one in lost] == [[victim]]


def same_decisions(root: Path, world: int, layout: str = "ddp") -> None:
    """One rank and several, with the same global batch, decide the same."""
    one, several = train(0, 1, root / "one"), untouched(world, False, layout)[0]
    assert any(kind == "plan" for kind, *_ in decisions(one))
    assert decisions(several) == decisions(one)
    assert several.quarantined == one.quarantined
    assert several.quarantined
    assert several.losses.keys() == one.losses.keys()
    for at, loss in one.losses.items():
        assert several.losses[at] == pytest.approx(loss, rel=TOLERANCE)


def through_other_sizes(run_dir: Path, layout: str = "ddp") -> list[Ended]:
    """Four ranks, then two, then four: the order of samples, the quarantine, the losses."""
    whole, *_ = untouched(4, False, layout)
    losses: dict[tuple[int, int], float] = {}
    ended: list[Ended] = []
    # After the second plan of the incident, and before it is verified.
    for world, until in ((4, 39), (2, 50), (4, None)):
        found = outcomes(train_again, world, run_dir, {"max_steps": until, "layout": layout})
        assert [one.error for one in found] == [""] * world, [one.trace for one in found]
        ended.append(found[0].result)
        losses |= ended[-1].losses
    assert ended[-1].quarantined == whole.quarantined
    by_step = {step: loss for (_, step), loss in sorted(losses.items())}
    expected = {step: loss for (_, step), loss in sorted(whole.losses.items())}
    assert by_step.keys() == expected.keys()
    for step, loss in expected.items():
        assert by_step[step] == pytest.approx(loss, rel=TOLERANCE), step
    return ended


def restarted_by_torchrun(root: Path, victim: int, layout: str = "ddp") -> None:
    """Torchrun restarts all when one is killed in a rollback, and the run goes on from disk."""
    expected, meetings, _ = untouched(2, layout=layout)
    plan = next(at for at, what in enumerate(meetings) if what.startswith("plan"))
    top = Path(__file__).parents[2]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=2"]
    program = ["--nproc-per-node=2", "-m", "tests.guard.torchrun_program"]
    given = [str(root), str(victim), str(plan + 3), layout]
    path = os.pathsep.join([str(top), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*launch, *program, *given],
        capture_output=True,
        text=True,
        cwd=top,
        check=False,
        # Else torchrun's store keeps the addresses of ranks that are gone, and a restart may
        # try to reach them (PyTorch 2.13).
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        assert (root / f"{rank}.ended").read_text() == f"1 {expected.digest}"
