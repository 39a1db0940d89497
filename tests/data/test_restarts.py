"""Quarantine and reflow over kills, other batch sizes and other world sizes, in real processes."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from foreshock.data.account import Account
from foreshock.data.requests import Request, Requests
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from tests.data.lineage import lineage
from tests.data.mini_run import BAD, stream_of
from tests.data.whole_order import admitted

SCRIPT = Path(__file__).with_name("mini_run.py")
ROOT = Path(__file__).parents[2]
LENGTH = 460


def run(run_dir, batch_size, world_size, num_positions, kill_at=0):
    """Returns how many moments it had, or None if it was killed in one."""
    arguments = [str(one) for one in (run_dir, batch_size, world_size, num_positions, kill_at)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "PATH": ""},
    )
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def ask(run_dir, number, **fields):
    request = Request(request=f"{number:016x}", **fields)
    Requests(RealDisk(), run_dir).leave(request)


def checked(run_dir: Path) -> list[list[int]]:
    """The batches of the run as it ended, held against brute force."""
    view = Journal.read(RealDisk(), run_dir)
    order = stream_of(1).order
    base = [tuple(order.locate(position)) for position in range(order.total)]
    batches = list(lineage(view).values())
    expected = admitted(base, view.records)
    at = 0
    for batch in batches:
        assert batch == sorted(expected[at : at + len(batch)])
        at += len(batch)
    assert not [p for batch in batches for p in batch if base[p][1:] == BAD]
    return batches


def prepared(run_dir: Path, batch_size=4, world_size=1) -> None:
    """A run up to position 150 that has set a window aside, and is asked to bring it back."""
    assert run(run_dir, batch_size, world_size, 150)
    account = Account(stream_of(1).describe(), Journal.read(RealDisk(), run_dir).records)
    (entry,) = account.entries()
    assert entry.num_held > 4
    fields = {"entry_id": entry.entry, "every_samples": 12, "watch_steps": 3}
    ask(run_dir, 1, command="reflow", **fields)


def copy_of(run_dir: Path, name: str) -> Path:
    target = run_dir.parent / name
    subprocess.run(["/bin/cp", "-r", str(run_dir), str(target)], check=True)
    return target


def outcomes(run_dir: Path) -> list[tuple]:
    records = Journal.read(RealDisk(), run_dir).records
    kept = ("outcome", "key", "slot", "position", "trained_step")
    return [tuple(map(str, map(one.get, kept))) for one in records if one["kind"] == "reflowed"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "start"
    prepared(run_dir)
    return run_dir


@pytest.fixture(scope="module")
def whole(start: Path) -> tuple[Path, int]:
    """The same run to its end, without an interruption; and how many moments that has."""
    run_dir = copy_of(start, "whole")
    moments = run(run_dir, 4, 1, LENGTH)
    assert moments is not None
    return run_dir, moments


def test_samples_come_back_but_for_the_one_that_harms(whole: tuple[Path, int]) -> None:
    checked(whole[0])
    found = outcomes(whole[0])
    assert [one for one in found if one[0] == "alarmed"] == [
        one for one in found if one[1] == str(list(BAD))
    ]
    assert sum(one[0] == "well" for one in found) >= 4
    account = Account(stream_of(1).describe(), Journal.read(RealDisk(), whole[0]).records)
    assert account.ledger.num_samples == 1
    assert account.ledger.holds(*BAD)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_do_as_one_does(start: Path, whole: tuple[Path, int], world_size: int) -> None:
    run_dir = copy_of(start, f"ranks{world_size}")
    assert run(run_dir, 4, world_size, LENGTH)
    assert checked(run_dir) == checked(whole[0])
    assert outcomes(run_dir) == outcomes(whole[0])


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment_the_run_ends_as_if_it_had_not_been(
    start: Path, whole: tuple[Path, int], seed: int
) -> None:
    killed_at_random(start, whole, seed, num_kills=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_killed_many_times(start: Path, whole: tuple[Path, int], seed: int) -> None:
    killed_at_random(start, whole, seed, num_kills=6)


def killed_at_random(start: Path, whole: tuple[Path, int], seed: int, num_kills: int) -> None:
    rng = random.Random(seed)
    run_dir = copy_of(start, f"killed{seed}")
    for _ in range(num_kills):
        world_size = rng.choice([1, 2, 4])
        if run(run_dir, 4, world_size, LENGTH, kill_at=rng.randint(1, whole[1])) is not None:
            break
    run(run_dir, 4, rng.choice([1, 4]), LENGTH)
    assert checked(run_dir) == checked(whole[0])
    assert outcomes(run_dir) == outcomes(whole[0])


def test_other_batch_and_world_sizes_go_on_in_the_same_order(start: Path) -> None:
    run_dir = copy_of(start, "sizes")
    for batch_size, world_size, stop in ((4, 2, 190), (8, 4, 270), (3, 1, 330), (5, 5, LENGTH)):
        run(run_dir, batch_size, world_size, stop, kill_at=40)
        assert run(run_dir, batch_size, world_size, stop)
    sizes = {len(batch) for batch in checked(run_dir)}
    assert sizes >= {3, 4, 5, 8}
    assert sum(one[0] == "well" for one in outcomes(run_dir)) >= 4


def test_a_release_while_it_runs_holds_from_there_on(start: Path) -> None:
    run_dir = copy_of(start, "release")
    for path in (run_dir / "requests").iterdir():
        path.unlink()
    account = Account(stream_of(1).describe(), Journal.read(RealDisk(), run_dir).records)
    (entry,) = account.entries()
    free = [key for key in account.ledger.samples(entry.entry) if key != BAD]
    ask(run_dir, 2, command="release", entry_id=entry.entry, ids=tuple(free))
    assert run(run_dir, 4, 1, 250)
    ask(run_dir, 3, command="release", entry_id="nonsense")
    assert run(run_dir, 4, 1, LENGTH)
    base = stream_of(1).order
    given = [base.locate(p)[1:] for batch in checked(run_dir) for p in batch]
    assert set(free) & set(given[150:])
    records = Journal.read(RealDisk(), run_dir).records
    refused = [one["reason"] for one in records if one["kind"] == "request_refused"]
    assert len(refused) == 1
    assert "no entry 'nonsense'" in refused[0]
    assert not list((run_dir / "requests").iterdir())
