"""The scripts of `docs/launchers.md`, run by a shell with stand-ins for SLURM's commands."""

import os
import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs/launchers.md"


def scripts() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(folder: Path, script: str, srun: str) -> list[str]:
    """Run a script; return what `scontrol` and `srun` were called with."""
    commands = folder / "bin"
    commands.mkdir()
    stand_ins = {
        "scontrol": 'echo "scontrol $*" >> calls; echo node1; echo node2',
        "srun": f'echo "srun $*" >> calls; {srun}',
    }
    for name, text in stand_ins.items():
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "17",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "node[1-2]",
    }
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return (folder / "calls").read_text().splitlines()


@pytest.mark.parametrize(
    ("kinds", "requeued"),
    [
        (["run_started", "stopping", "run_stopped", "notice_failed"], True),
        (["run_started", "run_stopped", "attempt_started", "run_finished"], False),
        (["run_started", "snapshot"], False),
        (["run_started", "run_halted"], False),
    ],
)
def test_the_batch_script_requeues_a_run_that_was_stopped(
    tmp_path: Path, kinds: list[str], requeued: bool
) -> None:
    (script,) = [one for one in scripts() if one.startswith("#!/bin/bash")]
    journal = tmp_path / "runs/a/decisions.jsonl"
    journal.parent.mkdir(parents=True)
    lines = [f'{{"kind":"{kind}","time":1.0,"attempt":1,"step":2}}\n' for kind in kinds]
    journal.write_text("".join(lines))
    calls = run(tmp_path, script, "exit 1")
    assert any("torchrun" in call and "--rdzv-endpoint=node1:29500" in call for call in calls)
    assert ("scontrol requeue 17" in calls) is requeued


@pytest.mark.parametrize("code", [75, 0, 1])
def test_one_process_is_requeued_by_its_exit_code(tmp_path: Path, code: int) -> None:
    (script,) = [one for one in scripts() if "-eq 75" in one]
    calls = run(tmp_path, script, f"exit {code}")
    assert ("scontrol requeue 17" in calls) is (code == 75)


@pytest.mark.parametrize("is_there", [False, True])
def test_the_command_resumes_a_run_that_is_there(tmp_path: Path, is_there: bool) -> None:
    (script,) = [one for one in scripts() if "foreshock run" in one]
    if is_there:
        (tmp_path / "runs/a").mkdir(parents=True)
        (tmp_path / "runs/a/run.json").touch()
    (call,) = run(tmp_path, script, "exit 0")
    assert call.endswith("--resume") is is_there


def test_torchrun_knows_the_options() -> None:
    options = {one for script in scripts() for one in re.findall(r" (--[a-z-]+)", script)}
    run_py = Path(pytest.importorskip("torch.distributed.run").__file__).read_text()
    asked = {"--signals-to-handle", "--shutdown-timeout", "--max-restarts", "--rdzv-endpoint"}
    assert asked <= options
    assert all(f'"{one}"' in run_py for one in asked)
