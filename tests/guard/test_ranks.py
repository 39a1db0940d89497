"""All ranks as one: the same decisions on any number, and a restart as if nothing had been."""

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

from tests.guard.ranked import (
    SHORT,
    Ended,
    counted,
    damaged,
    killed,
    sleeps,
    tampered,
    train,
)
from tests.ranks.outcomes import Outcome, outcomes

TOLERANCE = 2e-4
"""Relative, of losses: sums in another order, through Adam, over 60 steps."""


@functools.cache
def untouched(world: int, short: bool = True) -> tuple[Ended, tuple[str, ...], int]:
    """A run that nobody disturbed, its meetings, and how often its disk was changed."""
    with tempfile.TemporaryDirectory() as folder:
        options = SHORT if short else {}
        found = outcomes(counted, world, Path(folder) / "run", options)
        assert [one.error for one in found] == [""] * world
        first = found[0].result
        assert all(one.result[0].digest == first[0].digest for one in found)
        assert all(one.result[1] == first[1] for one in found)
        assert all(told(one.result[0]) == told(first[0]) for one in found)
        return first[0], tuple(first[1]), first[2]


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


def kill_and_restart(run_dir: Path, world: int, victim: int, where: str, number: int) -> None:
    expected, *_ = untouched(world)
    found = outcomes(killed, world, run_dir, victim, where, number, SHORT)
    if found[victim].code == 0:  # its n-th call never came
        assert all(one.result.digest == expected.digest for one in found)
        return
    assert found[victim].code == -9, found[victim]
    for rank, one in enumerate(found):
        # A rank whose last meeting was over is done; the others stop, and none hangs.
        assert rank == victim or one.code == 0 or one.error.startswith("RankError"), one
    again = outcomes(train_again, world, run_dir, SHORT)
    assert [one.error for one in again] == [""] * world, [one.trace for one in again]
    for one in again:
        assert one.result.digest == expected.digest
        assert one.result.quarantined == expected.quarantined
    plans = [one["plan_id"] for one in journal(run_dir) if one["kind"] == "plan"]
    assert plans == [one["plan_id"] for one in expected.records if one["kind"] == "plan"]


def train_again(rank: int, world: int, run_dir: Path, options: dict[str, Any]) -> Ended:
    return train(rank, world, run_dir, **options)


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_killed_in_a_rollback(victim: int, tmp_path: Path) -> None:
    """Rank 0 tells in the journal; if it is the one that died, the next."""
    _, meetings, _ = untouched(2)
    plan = next(at for at, what in enumerate(meetings) if what.startswith("plan"))
    kill_and_restart(tmp_path / "run", 2, victim, "meeting", plan + 3)
    lost = [one for one in journal(tmp_path / "run") if one["kind"] == "ranks_lost"]
    assert [one["ranks"] for one in lost] == [[victim]]


def test_a_rank_that_was_tampered_with_is_named(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for error in stopped(outcomes(tampered, 3, run_dir, 1, "monitor")):
        assert "rank 1 differs from the other 2 in the monitor's state" in error
    (record,) = [one for one in journal(run_dir) if one["kind"] == "ranks_differ"]
    assert record["ranks"] == [1]
    assert record["step"] == 10


@pytest.mark.slow
def test_one_verdict_where_one_rank_alone_has_a_broken_gradient(tmp_path: Path) -> None:
    found = outcomes(damaged, 2, tmp_path / "run")
    assert [one.error for one in found] == ["", ""], [one.trace for one in found]
    assert found[0].result.digest == found[1].result.digest
    skips = [one for one in journal(tmp_path / "run") if one["kind"] == "skip"]
    assert [one["step"] for one in skips] == [6]


@pytest.mark.slow
def test_the_first_rank_killed_while_it_writes_a_snapshot(tmp_path: Path) -> None:
    _, _, changes = untouched(2)
    kill_and_restart(tmp_path / "run", 2, 0, "disk", changes // 2)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_the_same_decisions_on_one_rank_and_on_several(world: int, tmp_path: Path) -> None:
    one, several = train(0, 1, tmp_path / "one"), untouched(world, short=False)[0]
    assert any(kind == "plan" for kind, *_ in decisions(one))
    assert decisions(several) == decisions(one)
    assert several.quarantined == one.quarantined
    assert several.quarantined
    assert several.losses.keys() == one.losses.keys()
    for at, loss in one.losses.items():
        assert several.losses[at] == pytest.approx(loss, rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "what"), [(3, "weight"), (2, "quarantine")])
def test_whatever_differs_stops_the_run(world: int, what: str, tmp_path: Path) -> None:
    errors = stopped(outcomes(tampered, world, tmp_path / "run", 1, what))
    named = {"weight": "rank 1 differs from the other 2 in the state"}
    named["quarantine"] = "ranks 0, 1 differ, and of two nobody can tell which is right"
    assert all(named[what] in error for error in errors), errors


@pytest.mark.slow
def test_a_rank_with_a_fault_of_its_own_is_named_by_the_others(tmp_path: Path) -> None:
    found = outcomes(tampered, 3, tmp_path / "run", 2, "fault")
    assert found[2].error == "RuntimeError: the program of this rank has a fault of its own"
    for error in stopped(found, but=2):
        assert "rank 2 (stopped: RuntimeError: the program of this rank" in error


@pytest.mark.slow
@pytest.mark.parametrize(("world", "sleeper"), [(2, 1), (3, 2), (2, 0)])
def test_a_rank_that_sleeps_in_a_rollback(world: int, sleeper: int, tmp_path: Path) -> None:
    """The others stop within the time-out and say who it was; a restart goes on."""
    run_dir = tmp_path / "run"
    found = outcomes(sleeps, world, run_dir, sleeper, 5.0)
    assert found[sleeper].code == -9  # by the test, as torchrun does when the others have ended
    for error in stopped(found, but=sleeper):
        assert f"rank {sleeper} (alive, but last seen at meeting" in error
    lost = [one for one in journal(run_dir) if one["kind"] == "ranks_lost"]
    # A first rank that hangs holds the run directory, so that nobody else can write.
    assert [one["ranks"] for one in lost] == ([] if sleeper == 0 else [[sleeper]])
    again = outcomes(train_again, world, run_dir, SHORT)
    assert [one.error for one in again] == [""] * world
    assert {one.result.digest for one in again} == {untouched(world)[0].digest}


@pytest.mark.slow
@pytest.mark.parametrize(("world", "seed"), [(2, 0), (2, 1), (4, 2)])
def test_kill_9_of_any_rank_at_any_moment(world: int, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    _, meetings, changes = untouched(world)
    for trial in range(6 if world == 2 else 4):
        victim = int(rng.integers(world))
        where = str(rng.choice(["meeting", "step", "disk"] if victim == 0 else ["meeting", "step"]))
        most = {"meeting": len(meetings), "step": 25, "disk": changes}[where]
        number = int(rng.integers(1, most))
        kill_and_restart(tmp_path / f"run{trial}", world, victim, where, number)


@pytest.mark.slow
def test_four_ranks_then_two_then_four(tmp_path: Path) -> None:
    """The same order of samples, the quarantine honoured, losses equal to rounding."""
    whole, *_ = untouched(4, short=False)
    run_dir = tmp_path / "run"
    losses: dict[tuple[int, int], float] = {}
    last: Ended | None = None
    # After the second plan of the incident, and before it is verified.
    for world, until in ((4, 39), (2, 50), (4, None)):
        found = outcomes(train_again, world, run_dir, {"max_steps": until})
        assert [one.error for one in found] == [""] * world, [one.trace for one in found]
        last = found[0].result
        losses |= last.losses
    assert last is not None
    assert last.quarantined == whole.quarantined
    by_step = {step: loss for (_, step), loss in sorted(losses.items())}
    expected = {step: loss for (_, step), loss in sorted(whole.losses.items())}
    assert by_step.keys() == expected.keys()
    for step, loss in expected.items():
        assert by_step[step] == pytest.approx(loss, rel=TOLERANCE), step


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_restarts_a_run_one_of_whose_ranks_was_killed(victim: int, tmp_path: Path) -> None:
    expected, meetings, _ = untouched(2)
    plan = next(at for at, what in enumerate(meetings) if what.startswith("plan"))
    root = Path(__file__).parents[2]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=2"]
    program = ["--nproc-per-node=2", "-m", "tests.guard.torchrun_program"]
    given = [str(tmp_path), str(victim), str(plan + 3)]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*launch, *program, *given],
        capture_output=True,
        text=True,
        cwd=root,
        check=False,
        # Else torchrun's store keeps the addresses of ranks that are gone, and a restart may
        # try to reach them (PyTorch 2.13).
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        assert (tmp_path / f"{rank}.ended").read_text() == f"1 {expected.digest}"
