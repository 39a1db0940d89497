"""Ranks that are asked to stop, one of them or all: all end at the same step, and go on."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from foreshock.guard import Guard
from tests.guard.ranked import SHORT, Ended, hurt, train
from tests.guard.undisturbed import journal, train_again, untouched
from tests.ranks.outcomes import outcomes

TOP = Path(__file__).parents[2]


def asked(
    rank: int, world: int, run_dir: Path, whom: dict[int, tuple[str, int]], layout: str
) -> Ended:
    """Train the short run; some ranks are sent a signal before a step."""

    def hook(guard: Guard, model: Any, at: int) -> None:
        name, step = whom.get(rank, ("", -1))
        if guard.step_number + 1 == step:
            os.kill(os.getpid(), signal.Signals[name])
        hurt(guard, model, at)

    return train(rank, world, run_dir, **{**SHORT, "hook": hook, "layout": layout})


def stop_and_go_on(
    run_dir: Path, whom: dict[int, tuple[str, int]], layout: str = "ddp", world: int = 2
) -> str:
    """What all ranks said; the run that goes on ends as one that nobody asked."""
    found = outcomes(asked, world, run_dir, whom, layout)
    said = {one.error for one in found}
    assert len(said) == 1, said
    (text,) = said
    assert text.startswith("Stopped: "), found[0].trace
    end = journal(run_dir)[-1]
    assert (end["kind"], f"after step {end['step']}:" in text) == ("run_stopped", True)
    assert end["snapshot"] in text
    again = outcomes(train_again, world, run_dir, {**SHORT, "layout": layout})
    assert [one.error for one in again] == [""] * world, [one.trace for one in again]
    assert {one.result.digest for one in again} == {untouched(world, layout=layout)[0].digest}
    return text


def test_one_rank_is_asked_and_all_stop(tmp_path: Path) -> None:
    text = stop_and_go_on(tmp_path / "run", {1: ("SIGUSR1", 6)})
    # It travels with the readings of step 6, which are read one step later.
    assert "SIGUSR1 after step 7:" in text


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_ranks_are_asked_at_different_steps_near_a_rollback(tmp_path: Path, layout: str) -> None:
    text = stop_and_go_on(tmp_path / "run", {0: ("SIGTERM", 12), 1: ("SIGTERM", 11)}, layout)
    assert "by SIGTERM" in text


def torchrun(root: Path, *options: str) -> "subprocess.Popen[str]":
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options]
    path = os.pathsep.join([str(TOP), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [*launch, "--nproc-per-node=2", "-m", "tests.guard.torchrun_stopped", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=TOP,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )


def wait_for_step(root: Path, rank: int, step: int) -> int:
    """The process of a rank, once it has trained a step."""
    begun = time.monotonic()
    while time.monotonic() - begun < 120:
        path = root / f"{rank}.step"
        known = re.fullmatch(r"(\d+) (\d+)\n", path.read_text() if path.exists() else "")
        if known is not None and int(known[2]) >= step:
            return int(known[1])
        time.sleep(0.01)
    raise AssertionError(f"rank {rank} never came to step {step}")


def ended_well(root: Path) -> None:
    expected, *_ = untouched(2)
    for rank in range(2):
        assert (root / f"{rank}.ended").read_text().split()[1] == expected.digest


@pytest.mark.slow
def test_torchrun_restarts_a_run_one_of_whose_ranks_was_asked_to_stop(tmp_path: Path) -> None:
    process = torchrun(tmp_path, "--max-restarts=2")
    os.kill(wait_for_step(tmp_path, 1, 4), signal.SIGTERM)
    said, _ = process.communicate(timeout=250)
    assert process.returncode == 0, said[-3000:]
    assert [one["kind"] for one in journal(tmp_path / "run")].count("run_stopped") == 1
    assert (tmp_path / "0.ended").read_text().startswith("1 ")
    ended_well(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_torchrun_itself_is_asked_to_stop(tmp_path: Path, name: str) -> None:
    """It hands the signal on; whoever starts it again goes on from the last step."""
    options = ["--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]
    process = torchrun(tmp_path, *options)
    wait_for_step(tmp_path, 0, 4)
    process.send_signal(signal.Signals[name])
    said, _ = process.communicate(timeout=250)
    assert process.returncode != 0, said[-3000:]
    end = journal(tmp_path / "run")[-1]
    assert (end["kind"], end["signal"]) == ("run_stopped", name), said[-3000:]
    again = torchrun(tmp_path)
    said, _ = again.communicate(timeout=250)
    assert again.returncode == 0, said[-3000:]
    ended_well(tmp_path)
