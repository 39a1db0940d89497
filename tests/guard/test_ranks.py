"""All ranks as one: the same decisions on any number, and a restart as if nothing had been."""

from pathlib import Path

import pytest

from tests.guard.ranked import SHORT, damaged, sleeps, tampered
from tests.guard.undisturbed import (
    journal,
    kill_and_restart,
    kill_anywhere,
    killed_in_a_rollback,
    restarted_by_torchrun,
    same_decisions,
    stopped,
    through_other_sizes,
    train_again,
    untouched,
)
from tests.ranks.outcomes import outcomes


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_killed_in_a_rollback(victim: int, tmp_path: Path) -> None:
    """Rank 0 tells in the journal; if it is the one that died, the next."""
    killed_in_a_rollback(tmp_path / "run", victim)


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
    kill_and_restart(tmp_path / "run", 2, 0, "disk", changes[0] // 2)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_the_same_decisions_on_one_rank_and_on_several(world: int, tmp_path: Path) -> None:
    same_decisions(tmp_path, world)


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
    kill_anywhere(tmp_path, world, seed, 6 if world == 2 else 4)


@pytest.mark.slow
def test_four_ranks_then_two_then_four(tmp_path: Path) -> None:
    """The same order of samples, the quarantine honoured, losses equal to rounding."""
    through_other_sizes(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_restarts_a_run_one_of_whose_ranks_was_killed(victim: int, tmp_path: Path) -> None:
    restarted_by_torchrun(tmp_path, victim)
