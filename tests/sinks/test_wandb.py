"""Weights & Biases in offline mode: its transaction log, read back."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreshock.core.log_builder import LogBuilder
from foreshock.readers import wandb_file
from foreshock.sinks.wandb import Wandb
from foreshock.source import FileSource
from tests.sinks.mirrored import HALT, RUN, a_run, alarm, notice, step, until

wandb = pytest.importorskip("wandb")


def opened(folder: Path, **options: Any) -> Any:
    (mirror,) = Wandb(mode="offline", dir=str(folder), **options).mirrors(RUN)
    mirror.adopt()
    mirror.open()
    return mirror


def records(folder: Path) -> list[Any]:
    """The records of a finished run; W&B's own process still writes for a moment."""
    record_type, _ = wandb_file._protobuf()
    found: list[Any] = []

    def whole() -> bool:
        (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
        data = wandb_file._records(FileSource(path), LogBuilder())
        found[:] = [record_type.FromString(one) for one in data]
        return any(one.WhichOneof("record_type") == "exit" for one in found)

    until(whole)
    return found


def rows(folder: Path) -> list[dict[str, float]]:
    found = [one.history for one in records(folder) if one.WhichOneof("record_type") == "history"]
    return [values for one in found if (row := wandb_file._row(one)) for values in [row[1]]]


def alerts(folder: Path) -> list[tuple[str, str, str]]:
    found = [one.alert for one in records(folder) if one.WhichOneof("record_type") == "alert"]
    return [(one.title, one.text, one.level) for one in found]


def test_a_run_of_its_own_has_a_row_each_step_and_an_axis_that_may_go_back(tmp_path: Path) -> None:
    mirror = opened(tmp_path)
    assert wandb.run is None  # the loop may still begin its own
    mirror.take([*a_run(), notice(3, HALT, attempt=2)])
    mirror.close()
    found = rows(tmp_path)
    assert [row["foreshock/step"] for row in found] == [1, 2, 3, 2, 3]
    assert [row["foreshock/attempt"] for row in found] == [1, 1, 1, 2, 2]
    losses = [row["foreshock/loss/global"] for row in found]
    np.testing.assert_array_equal(losses, [2.0, np.nan, 9.0, 2.5, 2.25])
    assert found[1]["foreshock/grad_norm/global"] == np.inf
    assert found[0]["foreshock/threshold/grad_norm/global"] == 5.0
    assert "foreshock/grad_norm/blocks.0.attn" not in found[0]
    defined = [
        (one.metric.name or one.metric.glob_name, one.metric.step_metric)
        for one in records(tmp_path)
        if one.WhichOneof("record_type") == "metric"
    ]
    assert ("foreshock/*", "foreshock/step") in defined
    raised = alerts(tmp_path)
    assert [title for title, *_ in raised] == ["run <b>a</b>: alarms", "plan 1 <b>", "HALTED"]
    assert [level for *_, level in raised] == ["WARN", "WARN", "ERROR"]
    assert "spike on loss/global at step 3" in raised[0][1]


def test_a_run_of_the_loops_own_keeps_every_row_that_the_loop_logs(tmp_path: Path) -> None:
    with wandb.init(mode="offline", dir=str(tmp_path)) as run:
        mirror = opened(tmp_path)
        for number in range(1, 31):
            mirror.take([step(number, 10.0 * number)])
            if number % 10 == 0:  # its steps rise far more slowly than ours
                run.log({"train/loss": float(number)}, step=number // 10)
        mirror.take([step(3, 33.0, attempt=2, alarms=(alarm(3),))])
        run.log({"train/loss": 40.0}, step=4)
        mirror.close()
        assert wandb.run is run
        run.log({"train/loss": 50.0}, step=5)
    found = rows(tmp_path)
    kept = [row["train/loss"] for row in found if "train/loss" in row]
    assert kept == [10.0, 20.0, 30.0, 40.0, 50.0]
    newest = [row["foreshock/loss/global"] for row in found if "foreshock/loss/global" in row]
    assert {100.0, 200.0, 33.0} <= set(newest)


def test_a_run_can_be_given_and_alerts_left_out(tmp_path: Path) -> None:
    with wandb.init(mode="offline", dir=str(tmp_path)) as run:
        mirror = opened(tmp_path, run=run, alerts=False, prefix="f/")
        mirror.take(a_run())
        mirror.close()
    assert alerts(tmp_path) == []
    assert rows(tmp_path)[-1]["f/step"] == 3


HANGING = """
import os, socket, sys
from types import SimpleNamespace
import numpy as np
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(50)
os.environ["WANDB_BASE_URL"] = f"http://127.0.0.1:{server.getsockname()[1]}"
os.environ["WANDB_API_KEY"] = "0" * 40
from foreshock.core.mirrored import MirroredRun
from foreshock.mirroring import Mirroring
from foreshock.sinks.wandb import Wandb
records = []
mirrors = Mirroring([Wandb(mode="online", dir=sys.argv[1])], MirroredRun(name="a"),
                    limits=lambda: np.empty(0), record=lambda *record: records.append(record))
for step in range(1, 4):
    row = SimpleNamespace(step=step, committed=True, values=np.ones(1, np.float32))
    mirrors.step(1, ("loss/global",), row, ())
mirrors.close(0.5)
assert [kind for kind, *_ in records] == ["mirror_failed", "mirror_dropped"], records
assert "127.0.0.1" not in str(records)
print("trained")
"""


@pytest.mark.slow
def test_a_process_ends_although_the_service_never_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING, str(tmp_path)], capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    assert "trained" in done.stdout
