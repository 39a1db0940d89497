"""`foreshock snapshots`: a table of what a run could go back to, with a reason for each."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foreshock.cli.main import cli
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from foreshock.snapshots.disk import DiskStore

ILL = Health(concerns=("loss/global was out of range at step 30",))
DOUBTED = Health(doubts=("activation_norm/blocks.31 has grown 1.4-fold over its last 50 values",))


def ref(step: int, attempt: int = 1, health: Health | None = None) -> SnapshotRef:
    return SnapshotRef(
        id=f"{step:08d}-a{attempt:05d}", attempt=attempt, step=step, position=8 * step,
        durable=True, digest="d", health=health or Health(),
    )  # fmt: skip


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """0, 10 (damaged), 20, 30 (ill), 40 (doubted), 50 (undone by a rollback to 45)."""
    now = 1000.0
    disk = RealDisk()
    store = DiskStore(disk, tmp_path / "run" / "snapshots")
    with Journal.create(disk, tmp_path / "run", {}, lambda: now) as journal:
        journal.write("attempt_started", attempt=1, step=0)
        health = {30: ILL, 40: DOUBTED}
        for step in range(0, 60, 10):
            one = ref(step, health=health.get(step))
            size = store.write(one, {"a": b"x" * 5000})
            now += 600
            journal.write("snapshot", attempt=1, step=step, snapshot=one.to_json(), size_bytes=size)
        reason = "snapshot 00000010-a00001: tensors.safetensors is damaged"
        journal.write(
            "snapshot_passed_over", attempt=1, step=50, reason=reason,
            snapshot="00000010-a00001", bad=True,
        )  # fmt: skip
        journal.write("attempt_started", attempt=2, step=45)
        now += 90_000
        journal.write("skip", attempt=2, step=46)
    return tmp_path / "run"


def listed(run_dir: Path, *options: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["snapshots", str(run_dir), "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_each_has_its_reason(run_dir: Path) -> None:
    found = listed(run_dir, "--onset", "41")
    rows = {row["step"]: row for row in found["snapshots"]}
    assert [row["step"] for row in found["snapshots"]] == [50, 40, 30, 20, 10, 0]
    assert "undone" in rows[50]["why"]
    assert rows[40]["chosen"]  # 20 is free of doubt, but too far from the onset
    assert rows[30]["why"] == ILL.concerns[0]
    assert "in doubt (activation_norm" in rows[40]["why"]
    assert "20 steps before the onset instead of 1" not in rows[40]["why"]
    assert "would undo 21 steps instead of 1, more than 3 times" in rows[40]["why"]
    assert "no better than 00000040-a00001" in rows[20]["why"]
    assert rows[10]["why"].startswith("damaged: ")
    assert found["chosen"] == found["resumed_from"] == "00000040-a00001"
    assert [row["step"] for row in found["snapshots"] if row["chosen"]] == [40]
    assert rows[40]["age_secs"] == 600 + 90_000
    assert rows[0]["size_bytes"] > 10_000  # bytes are hexadecimal in a manifest
    assert rows[0]["where"] == "disk"


@pytest.mark.parametrize(
    ("options", "step"),
    [
        (["--onset", "31"], 20), (["--onset", "20"], 0), (["--onset", "70"], 20),
        (["--onset", "41", "--failed", "1"], 20), (["--onset", "41", "--failed", "9"], 0), ([], 40),
    ],
)  # fmt: skip
def test_the_onset_decides(run_dir: Path, options: list[str], step: int) -> None:
    found = listed(run_dir, *options)
    assert found["chosen"] == f"{step:08d}-a00001"


def test_the_open_incident_gives_the_onset(run_dir: Path) -> None:
    disk = RealDisk()
    with Journal.open(disk, run_dir, None, lambda: 2e5) as journal:
        journal.write("plan", attempt=2, step=47, diagnosis={"onset_step": 20})
    assert listed(run_dir)["onset_step"] == 20
    with Journal.open(disk, run_dir, None, lambda: 2e5) as journal:
        journal.write("incident_closed", attempt=2, step=60)
    assert listed(run_dir)["onset_step"] is None


def test_the_table_fits_into_80_columns(run_dir: Path) -> None:
    done = CliRunner().invoke(cli, ["snapshots", str(run_dir), "--onset", "41"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    (chosen,) = [line for line in lines if line.startswith("→")]
    assert "00000040-a00001" in chosen
    assert "25 h" in chosen or "1 d" in chosen
    assert "6 snapshots" in done.output
    assert "healthy" in lines[0]


def test_what_cannot_be_read_is_told(run_dir: Path) -> None:
    (run_dir / "snapshots" / "00000020-a00001" / "manifest.json").write_text("{}")
    found = listed(run_dir)
    assert [row["step"] for row in found["snapshots"]] == [50, 40, 30, 10, 0]
    assert "00000020-a00001" in found["unreadable"][0]
    done = CliRunner().invoke(cli, ["snapshots", str(run_dir)])
    assert "00000020-a00001" in done.output


def test_it_only_reads_and_needs_no_torch(run_dir: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in sorted(run_dir.rglob("*"))}
    code = (
        "import sys; from foreshock.cli.main import app\n"
        f"try: app(['snapshots', {str(run_dir)!r}])\n"
        "except SystemExit as left: assert not left.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {p: p.stat().st_mtime_ns for p in sorted(run_dir.rglob("*"))} == before


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "snapshot", "snapshot": 3}, {"kind": "snapshots_dropped", "dropped": [1]},
        {"kind": "snapshot_passed_over", "bad": True}, {"kind": "plan", "diagnosis": "x"},
        {"kind": "snapshot", "snapshot": {"id": "a"}, "size_bytes": 1e300},
    ],
)  # fmt: skip
def test_records_that_no_run_writes_say_nothing(run_dir: Path, record: dict[str, Any]) -> None:
    kind = record.pop("kind")
    with Journal.open(RealDisk(), run_dir, None, lambda: 2e5) as journal:
        journal.write(kind, attempt=2, step=47, **record)
    assert listed(run_dir)["chosen"] == "00000040-a00001"


def test_no_run_is_one_sentence(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["snapshots", str(tmp_path)])
    assert done.exit_code != 0
    assert "run.json" in str(done.exception)
