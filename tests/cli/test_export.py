"""`foreshock export`: the readings, the whole readings, in the format asked for."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from foreshock.cli.main import app, cli
from foreshock.core.reading import ABSENT
from foreshock.durable import RealDisk
from foreshock.journal import Journal

pq = pytest.importorskip("pyarrow.parquet")

SERIES = ["loss/global", "grad_norm/blocks.0", "grad_norm/blocks.1"]
THIRD = np.float32(1 / 3)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Steps 1 to 6, then back to 4 and on to 8; blocks.1 is measured at even steps only."""
    disk = RealDisk()
    with Journal.create(disk, tmp_path / "run", {}, lambda: 0.0) as journal:
        for attempt, start, stop in ((1, 1, 6), (2, 5, 8)):
            journal.write("attempt_started", attempt=attempt, step=start - 1)
            journal.open_readings(attempt, SERIES)
            for step in range(start, stop + 1):
                loss = {2: np.nan, 3: np.inf, 4: -np.inf}.get(step, THIRD)
                rare = ABSENT if step % 2 else np.float32(100 * attempt + step)
                journal.append_reading(step, 1, np.array([loss, step, rare], np.float32))
    disk.close()
    return tmp_path / "run"


def export(run_dir: Path, name: str, *options: str) -> tuple[Path, dict[str, Any]]:
    path = run_dir.parent / name
    done = CliRunner().invoke(cli, ["export", str(run_dir), "--to", str(path), "--json", *options])
    assert done.exit_code == 0, done.output
    return path, json.loads(done.output)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as left:
        app(["export", *(str(one) for one in arguments)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_parquet_is_wide_and_null_where_nothing_was_measured(run_dir: Path) -> None:
    path, told = export(run_dir, "a.parquet")
    table = pq.read_table(path)
    assert table.column_names == ["step", *SERIES]
    assert table.column("step").to_pylist() == list(range(1, 9))
    assert table.column(SERIES[2]).to_pylist() == [None, 102, None, 104, None, 206, None, 208]
    assert table.column(SERIES[0]).null_count == 0
    losses = table.column(SERIES[0]).to_numpy()
    np.testing.assert_array_equal(losses[:5], np.float32([THIRD, np.nan, np.inf, -np.inf, THIRD]))
    assert told == {
        "path": str(path),
        "num_series": 3,
        "num_steps": 8,
        "num_values": 20,
        "steps": [1, 8],
        "bytes": path.stat().st_size,
    }


def test_csv_reads_back_to_the_same_bits(run_dir: Path) -> None:
    path, _ = export(run_dir, "a.csv", "--steps", "2:5")
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["step", *SERIES]
    assert [row[0] for row in rows[1:]] == ["2", "3", "4", "5"]
    assert [row[1] for row in rows[1:]] == ["NaN", "Infinity", "-Infinity", str(THIRD)]
    assert np.float32(rows[4][1]) == THIRD
    assert [row[3] for row in rows[1:]] == ["102.0", "", "104.0", ""]


def test_jsonl_is_strict_json(run_dir: Path) -> None:
    path, _ = export(run_dir, "a.jsonl", "--attempt", "1")
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.open()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[1] == {
        "step": 2,
        "attempt": 1,
        "loss/global": "NaN",
        "grad_norm/blocks.0": 2.0,
        "grad_norm/blocks.1": 102.0,
    }
    assert SERIES[2] not in lines[0]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_long_is_a_row_a_reading(run_dir: Path, kind: str) -> None:
    options = ["--long", "--series", "grad_norm/*", "--steps", "5:"]
    path, told = export(run_dir, f"a.{kind}", *options)
    if kind == "parquet":
        rows = pq.read_table(path).to_pylist()
    elif kind == "csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = [json.loads(line) for line in path.open()]
    found = {
        (int(row["attempt"]), int(row["step"]), row["signal"], row["scope"], float(row["value"]))
        for row in rows
    }
    expected = {(2, step, "grad_norm", "blocks.0", float(step)) for step in range(5, 9)}
    expected |= {(2, step, "grad_norm", "blocks.1", 200.0 + step) for step in (6, 8)}
    assert (found, len(rows), told["num_values"]) == (expected, 6, 6)


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_no_steps_is_an_empty_table(run_dir: Path, kind: str) -> None:
    path, told = export(run_dir, f"a.{kind}", "--steps", "50:60")
    assert (told["num_steps"], told["steps"]) == (0, None)
    if kind == "parquet":
        assert pq.read_table(path).shape == (0, 4)
    done = CliRunner().invoke(cli, ["export", str(run_dir), "--to", str(path), "--steps", "50:"])
    assert "3 series, no steps, 0 readings" in done.output


def test_mistakes_are_one_sentence(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    to = ("--to", run_dir.parent / "a.csv")
    assert "one of .parquet, .csv, .jsonl" in refused(capsys, run_dir, "--to", "x.xlsx")
    assert "no directory" in refused(capsys, run_dir, "--to", run_dir / "no" / "a.csv")
    assert "near are grad_norm/" in refused(capsys, run_dir, *to, "--series", "grad_nrm/blocks.0")
    for steps in ("5", "a:b", "-3:4", "9:4", "1:2:3"):
        assert "--steps" in refused(capsys, run_dir, *to, f"--steps={steps}")
    assert "attempt 9" in refused(capsys, run_dir, *to, "--attempt", "9")
    assert "not a Foreshock run" in refused(capsys, run_dir.parent, *to)
    assert not (run_dir.parent / "a.csv").exists()
    for path in (run_dir / "readings/attempt-00001").iterdir():
        path.write_bytes(b"nonsense")
    assert "not a Foreshock file" in refused(capsys, run_dir, *to)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    to = ("--to", run_dir.parent / "a.parquet")
    assert "pip install" in refused(capsys, run_dir, *to, "--attempt", "2")


def test_a_failure_leaves_the_file_that_was_there(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_dir.parent / "a.csv"
    path.write_text("mine")
    for one in (run_dir / "readings/attempt-00002").iterdir():
        data = bytearray(one.read_bytes())
        data[4] ^= 1
        one.write_bytes(data)
    refused(capsys, run_dir, "--to", path)
    assert path.read_text() == "mine"
    assert list(run_dir.parent.glob(".*")) == []
