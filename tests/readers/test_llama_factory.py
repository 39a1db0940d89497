"""LLaMA-Factory's `trainer_log.jsonl`."""

import json
from pathlib import Path

from foreshock.logs import ranking, read_log
from foreshock.source import FileSource

OLD = [
    {
        "current_steps": step,
        "total_steps": 40,
        "loss": loss,
        "eval_loss": None,
        "predict_loss": None,
        "reward": None,
        "learning_rate": 0.001,
        "epoch": 0.25,
        "percentage": 2.5 * step,
        "elapsed_time": "0:00:10",
        "remaining_time": "1 day, 0:00:10",
    }
    for step, loss in ((5, 2.5), (10, 2.25))
]
EVALUATION = dict.fromkeys(OLD[0]) | {"current_steps": 10, "total_steps": 40, "eval_loss": 2.75}
LAST = dict.fromkeys(OLD[0]) | {"current_steps": 10, "total_steps": 40, "percentage": 100.0}
NEW = [
    {"current_steps": 5, "total_steps": 40, "loss": 2.5, "lr": 0.5, "epoch": 0.1},
    {"current_steps": 10, "total_steps": 40, "eval_loss": 2.0, "epoch": 0.2, "throughput": 9.5},
]


def write(tmp_path: Path, rows: list[dict[str, object]], end: str = "") -> Path:
    path = tmp_path / "trainer_log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)
    return path


def test_rows_are_read_exactly(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, [*OLD, EVALUATION, LAST]))
    assert log.format == "llama_factory"
    (run,) = log.runs
    assert set(run.series) == {"loss", "lr", "epoch", "eval_loss"}
    assert run.series["loss"].steps.tolist() == [5, 10]
    assert run.series["loss"].values.tolist() == [2.5, 2.25]
    assert run.series["eval_loss"].values.tolist() == [2.75]
    assert run.total_steps == 40
    assert not log.notes


def test_new_versions_leave_out_what_is_null(tmp_path: Path) -> None:
    (run,) = read_log(write(tmp_path, NEW)).runs
    assert run.series["lr"].values.tolist() == [0.5]
    assert run.series["eval_loss"].steps.tolist() == [10]
    assert set(run.series) == {"loss", "lr", "epoch", "eval_loss"}


def test_a_last_row_of_nulls_is_no_nan(tmp_path: Path) -> None:
    rows = [{**OLD[0], "current_steps": step} for step in range(5, 105, 5)]
    (run,) = read_log(write(tmp_path, [*rows, LAST])).runs
    assert run.series["loss"].values.tolist() == [2.5] * 20


def test_a_cut_last_line_is_skipped(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, OLD, '{"current_steps": 15, "total_st'))
    assert log.runs[0].series["loss"].steps.tolist() == [5, 10]
    assert any("line 3" in note for note in log.notes)


def test_a_restart_repeats_steps(tmp_path: Path) -> None:
    steps = [*range(5, 55, 5), *range(30, 70, 5)]
    (run,) = read_log(write(tmp_path, [{**OLD[0], "current_steps": one} for one in steps])).runs
    assert run.restarts == ((50, 30),)


def test_a_directory_and_recognition(tmp_path: Path) -> None:
    path = write(tmp_path, OLD)
    (run,) = read_log(tmp_path).runs
    assert run.series["loss"].steps.tolist() == [5, 10]
    assert ranking(FileSource(path).sample())[0][1].name == "llama_factory"
    path.write_text('{"current_steps": 5, "loss": 2.5}\n' * 3)
    found = ranking(FileSource(path).sample())
    assert "llama_factory" not in [reader.name for _, reader in found]
