"""Parquet tables, with and without pyarrow."""

import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from foreshock.core.errors import LogError, MissingExtra
from foreshock.core.log import LoggedRun
from foreshock.logs import ranking, read_log
from foreshock.source import FileSource

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(path: Path, columns: dict[str, Any], **kwargs: Any) -> Path:
    pq.write_table(pa.table(columns), path, **kwargs)
    return path


def points(run: LoggedRun, signal: str) -> list[tuple[int, float]]:
    one = run.series[signal]
    return list(zip(one.steps.tolist(), one.values.tolist(), strict=True))


def test_a_table_is_read_exactly(tmp_path: Path) -> None:
    path = write(
        tmp_path / "0000.parquet",
        {
            "_step": [0, 10, 20],
            "train/loss": [4.0, math.nan, 3.5],
            "eval/loss": [None, 4.5, None],
            "train/grad_norm": pa.array([1.5, math.inf, 1.25], pa.float32()),
            "_timestamp": [1.7e9, 1.7e9, 1.7e9],
            "note": ["a", "b", "c"],
            "histogram": [[1, 2], [3], []],
            "config": [{"a": 1}, {"a": 2}, {"a": 3}],
        },
    )
    log = read_log(path)
    assert log.format == "parquet"
    (run,) = log.runs
    assert set(run.series) == {"loss", "eval_loss", "grad_norm"}
    assert run.series["loss"].steps.tolist() == [0, 10, 20]
    assert math.isnan(run.series["loss"].values[1])
    assert points(run, "eval_loss") == [(10, 4.5)]
    assert points(run, "grad_norm") == [(0, 1.5), (10, math.inf), (20, 1.25)]


def test_row_groups_follow_each_other(tmp_path: Path) -> None:
    steps = list(range(20_000))
    path = write(
        tmp_path / "x.parquet",
        {"step": steps, "loss": [0.5 * s for s in steps]},
        row_group_size=999,
    )
    (run,) = read_log(path).runs
    assert points(run, "loss") == [(step, 0.5 * step) for step in steps]


def test_pandas_writes_nan_as_null(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.parquet",
        {"step": list(range(30)), "loss": [2.0] * 20 + [None] * 10, "lr": [0.5] * 30},
    )
    values = read_log(path).runs[0].series["loss"].values
    assert len(values) == 30
    assert all(math.isnan(one) for one in values[20:])


def test_splits_are_told_apart(tmp_path: Path) -> None:
    split = pa.array(["train", "val", "train", "val"]).dictionary_encode()
    path = write(
        tmp_path / "x.parquet", {"split": split, "step": [1, 1, 2, 2], "loss": [4.0, 5.0, 3.0, 4.0]}
    )
    (run,) = read_log(path).runs
    assert points(run, "loss") == [(1, 4.0), (2, 3.0)]
    assert points(run, "eval_loss") == [(1, 5.0), (2, 4.0)]


@pytest.mark.parametrize("cut", [5, 100, -1, -9, -200])
def test_a_cut_or_damaged_file_is_one_error(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "x.parquet", {"step": [1, 2], "loss": [2.0, 1.5]})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(LogError):
        read_log(path)


def test_damage_anywhere_never_is_a_traceback(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", {"step": [*range(50)], "loss": [*range(50)]})
    whole = path.read_bytes()
    for at in range(4, len(whole), 7):
        path.write_bytes(whole[:at] + b"\xff\xff\xff" + whole[at + 3 :])
        with suppress(LogError):
            read_log(path)


def test_no_numbers_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(LogError):
        read_log(write(tmp_path / "x.parquet", {"a": [[1], [2]]}))


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.parquet", {"step": [1], "loss": [2.0]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"foreshock\[logs\]"):
        read_log(path)


def test_what_is_recognised(tmp_path: Path) -> None:
    path = write(tmp_path / "x.bin", {"step": [1], "loss": [2.0]})
    assert ranking(FileSource(path).sample())[0][1].name == "parquet"
    path.write_bytes(b"PARIS\n" * 10)
    assert "parquet" not in [reader.name for _, reader in ranking(FileSource(path).sample())]
