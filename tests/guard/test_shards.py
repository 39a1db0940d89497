"""The Guard on shards (FSDP2): the same decisions, the same recovery, the same bits."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from foreshock.attempts import Attempts
from foreshock.cli.main import cli
from foreshock.durable import RealDisk
from foreshock.run_view import view_run
from foreshock.shared_store import EveryRankStore
from foreshock.snapshots.disk import DiskStore
from foreshock.weights import find_weights
from tests.guard.programs import TinyModel
from tests.guard.ranked import AT_ONCE, SHORT, Ended, broken_gradient, forgetful, full_disk, sleeps
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
from tests.ranks.outcomes import Outcome, outcomes

FSDP: dict[str, Any] = {**SHORT, "layout": "fsdp", "cadence": AT_ONCE}


def ended(found: list[Outcome]) -> Ended:
    """What all ranks came to, which must be one."""
    assert [one.error for one in found] == [""] * len(found), [one.trace for one in found]
    assert len({one.result.digest for one in found}) == 1
    return found[0].result


def kinds(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    return [one for one in journal(run_dir) if one["kind"] == kind]


def test_a_rank_killed_in_a_rollback(tmp_path: Path) -> None:
    """A rollback from memory, kill -9 in it, a restart from disk: all bit-exact."""
    killed_in_a_rollback(tmp_path / "run", 1, "fsdp")


@pytest.mark.proof
def test_the_first_rank_killed_in_a_rollback(tmp_path: Path) -> None:
    killed_in_a_rollback(tmp_path / "run", 0, "fsdp")


@pytest.mark.parametrize(
    ("world", "layout"),
    [
        pytest.param(4, "fsdp", marks=pytest.mark.slow),
        pytest.param(2, "fsdp", marks=pytest.mark.proof),
        pytest.param(4, "hsdp", marks=pytest.mark.proof),
    ],
)
def test_the_same_decisions_on_one_rank_and_on_shards(
    world: int, layout: str, tmp_path: Path
) -> None:
    same_decisions(tmp_path, world, layout)


@pytest.mark.parametrize(
    "victim", [pytest.param(0, marks=pytest.mark.proof), pytest.param(1, marks=pytest.mark.slow)]
)
def test_a_rank_killed_while_it_writes_its_shards(victim: int, tmp_path: Path) -> None:
    _, _, changes = untouched(2, layout="fsdp")
    kill_and_restart(tmp_path / "run", 2, victim, "disk", changes[victim] // 2, "fsdp")


@pytest.mark.proof
@pytest.mark.parametrize(("world", "seed"), [(2, 3), (4, 4)])
def test_kill_9_of_any_rank_at_any_moment(world: int, seed: int, tmp_path: Path) -> None:
    kill_anywhere(tmp_path, world, seed, num_trials=6, layout="fsdp")


@pytest.mark.slow
def test_torchrun_restarts_a_run_one_of_whose_ranks_was_killed(tmp_path: Path) -> None:
    restarted_by_torchrun(tmp_path, 1, "fsdp")


@pytest.mark.proof
def test_a_rank_that_sleeps_in_a_rollback(tmp_path: Path) -> None:
    options = {"layout": "fsdp"}
    found = outcomes(sleeps, 2, tmp_path / "run", 1, 5.0, Attempts, "go_back", options)
    for error in stopped(found, but=1):
        assert "rank 1 (alive, but last seen at meeting" in error
    again = ended(outcomes(train_again, 2, tmp_path / "run", {**SHORT, "layout": "fsdp"}))
    assert again.digest == untouched(2, layout="fsdp")[0].digest


@pytest.mark.parametrize(
    "asynchronous",
    [pytest.param(False, marks=pytest.mark.proof), pytest.param(True, marks=pytest.mark.slow)],
)
def test_a_rank_that_hangs_while_it_writes(asynchronous: bool, tmp_path: Path) -> None:
    """Only its disk does not answer; it is named, and what was whole before is gone on from."""
    run_dir = tmp_path / "run"
    cadence = dataclasses.replace(AT_ONCE, asynchronous=asynchronous)
    options = {"layout": "fsdp", "cadence": cadence}
    ended(outcomes(train_again, 2, run_dir, {**SHORT, **options, "max_steps": 4}))
    found = outcomes(sleeps, 2, run_dir, 1, 4.0, EveryRankStore, "save", options)
    for error in stopped(found, but=1):
        assert "rank 1" in error and "did not come" in error
    assert [one["ranks"] for one in kinds(run_dir, "ranks_lost")] == [[1]]
    again = ended(outcomes(train_again, 2, run_dir, {**SHORT, **options}))
    assert again.digest == untouched(2, layout="fsdp")[0].digest


@pytest.mark.slow
@pytest.mark.parametrize(("who", "layout"), [(None, "fsdp"), (1, "fsdp"), (1, "ddp")])
def test_a_rollback_that_memory_fails_on_one_rank_or_all(
    who: int | None, layout: str, tmp_path: Path
) -> None:
    """All pass it over alike and read the same state from disk, to the same bits."""
    again = ended(outcomes(forgetful, 2, tmp_path / "run", who, layout))
    assert again.digest == untouched(2, layout=layout)[0].digest
    assert again.quarantined == untouched(2, layout=layout)[0].quarantined
    passed_over = kinds(tmp_path / "run", "snapshot_passed_over")
    if who is None:
        assert passed_over == []
    else:
        assert {one["bad"] for one in passed_over} == {False}
        assert all("on rank 1" in one["reason"] for one in passed_over)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adamw", "fused"])
def test_one_verdict_where_one_shard_has_a_broken_gradient(kind: str, tmp_path: Path) -> None:
    """The gate judges the norm of all shards; a skipped step leaves every bit on every rank."""
    found = outcomes(broken_gradient, 2, tmp_path / "run", kind)
    assert [one.error for one in found] == ["", ""], [one.trace for one in found]
    for one in found:
        skips, stayed, norms = one.result
        assert skips == [6]
        assert stayed == [step == 6 for step in range(1, 9)]
        assert norms == pytest.approx(found[0].result[2], nan_ok=True)
        assert np.isfinite(norms).tolist() == [step != 6 for step in range(1, 9)]


@pytest.mark.slow
def test_training_goes_on_where_one_rank_has_no_room(tmp_path: Path) -> None:
    again = ended(outcomes(full_disk, 2, tmp_path / "run"))
    assert again.digest == untouched(2, layout="fsdp")[0].digest
    failed = kinds(tmp_path / "run", "snapshot_failed")
    assert failed
    assert all("on rank 1: No space left" in one["reason"] for one in failed)
    left = [path.name for path in (tmp_path / "run" / "snapshots").iterdir()]
    assert not any(name.startswith(("00000010", ".")) for name in left)


# Damage


def flip(path: Path, seed: int = 0) -> None:
    data = bytearray(path.read_bytes())
    place = int(np.random.default_rng(seed).integers(len(data)))
    data[place] ^= 1 << seed % 8
    path.write_bytes(data)


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit of the last rank's tensors": lambda p: flip(p / "rank-00001.safetensors", 3),
    "half of the first rank's tensors": lambda p: cut(p / "rank-00000.safetensors"),
    "a bit of the last rank's contents": lambda p: flip(p / "rank-00001.json", 4),
    "no tensors of the last rank": lambda p: (p / "rank-00001.safetensors").unlink(),
    "a bit of the manifest": lambda p: flip(p / "manifest.json", 5),
    "no manifest": lambda p: (p / "manifest.json").unlink(),
}


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two sharded ranks that ended after step 17, with snapshots of 0, 10 and 17."""
    run_dir = tmp_path_factory.mktemp("halfway") / "run"
    ended(outcomes(train_again, 2, run_dir, {**FSDP, "max_steps": 17}))
    assert [ref.step for ref in DiskStore(RealDisk(), run_dir / "snapshots").refs()[0]] == [
        0,
        10,
        17,
    ]
    return run_dir


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(act, id=name, marks=pytest.mark.slow if number < 2 else pytest.mark.proof)
        for number, (name, act) in enumerate(DAMAGES.items())
    ],
)
def test_a_damaged_snapshot_is_passed_over_on_all_ranks(
    damage: Callable[[Path], Any], halfway: Path, tmp_path: Path
) -> None:
    """Marked bad once, and gone on from the last good one; the end is the same."""
    run_dir = shutil.copytree(halfway, tmp_path / "run")
    damage(run_dir / "snapshots" / "00000017-a00002")
    again = ended(outcomes(train_again, 2, run_dir, FSDP))
    assert again.digest == untouched(2, layout="fsdp")[0].digest
    (record,) = kinds(run_dir, "snapshot_passed_over")
    assert record["snapshot"] == "00000017-a00002"
    assert record["bad"] is True
    starts = [(one["attempt"], one["step"]) for one in kinds(run_dir, "attempt_started")]
    assert starts == [(1, 0), (2, 10), (3, 10)]


@pytest.mark.slow
def test_down_to_the_last_good_one(halfway: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(halfway, tmp_path / "run")
    for seed, name in enumerate(["00000010-a00001", "00000017-a00002"]):
        flip(run_dir / "snapshots" / name / f"rank-0000{seed}.safetensors", seed)
    again = ended(outcomes(train_again, 2, run_dir, FSDP))
    assert again.digest == untouched(2, layout="fsdp")[0].digest
    assert [one["bad"] for one in kinds(run_dir, "snapshot_passed_over")] == [True, True]


# Other numbers of ranks, and other layouts


@pytest.mark.slow
def test_four_ranks_then_two_then_four(tmp_path: Path) -> None:
    through_other_sizes(tmp_path / "run", "fsdp")
    changed = kinds(tmp_path / "run", "ranks_changed")
    told = {(one["before"], one["now"]): one["why"] for one in changed}
    assert list(told) == [(4, 2), (2, 4)]
    assert told[4, 2] == "that of ranks 2 to 3 is left out"
    assert told[2, 4].startswith("ranks 2 to 3 are new and make theirs")


@pytest.mark.slow
def test_shards_replicas_and_one_rank_take_up_each_others_runs(tmp_path: Path) -> None:
    """Without dropout the weights are those of one rank throughout, but for rounding."""
    run_dir = tmp_path / "run"
    options = {**SHORT, "dropout": 0.0, "cadence": AT_ONCE}
    whole = ended(outcomes(train_again, 1, tmp_path / "whole", options))
    last: Ended | None = None
    for world, layout, until in (
        (2, "fsdp", 6),
        (1, "", 10),
        (2, "fsdp", 15),
        (2, "ddp", 18),
        (1, "fsdp", 21),
        (4, "fsdp", 24),
    ):
        given = {**options, "layout": layout, "max_steps": until}
        last = ended(outcomes(train_again, world, run_dir, given))
    assert last is not None
    assert kinds(run_dir, "snapshot_passed_over") == []
    assert last.quarantined == whole.quarantined
    for name, one in whole.weights.items():
        torch.testing.assert_close(last.weights[name], one, rtol=2e-3, atol=2e-4)


@pytest.mark.slow
def test_one_process_reads_what_ranks_wrote(tmp_path: Path) -> None:
    """`foreshock verify` and `snapshots` need no process group; the weights are the run's."""
    run_dir = tmp_path / "run"
    last = ended(outcomes(train_again, 2, run_dir, {**FSDP, "max_steps": 7}))
    model = TinyModel()
    found = find_weights(str(run_dir))
    assert found.ref is not None and found.ref.step == 7
    found.load_into(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.detach(), last.weights[name]), name
    assert view_run(RealDisk(), run_dir).records
    told = CliRunner().invoke(cli, ["snapshots", str(run_dir), "--json"])
    rows = json.loads(told.stdout)
    assert [row["step"] for row in rows["snapshots"]] == [7, 0]
    assert rows["unreadable"] == []
    on_disk = sum(path.stat().st_size for path in (run_dir / "snapshots" / found.ref.id).iterdir())
    manifest = (run_dir / "snapshots" / found.ref.id / "manifest.json").stat().st_size
    assert rows["snapshots"][0]["size_bytes"] == on_disk - manifest
