"""ms-swift's `logging.jsonl`."""

import json
from pathlib import Path

from foreshock.logs import ranking, read_log
from foreshock.source import FileSource

ROWS: list[dict[str, object]] = [
    {
        "loss": loss,
        "grad_norm": norm,
        "learning_rate": 0.001,
        "token_acc": 0.5,
        "epoch": 0.25,
        "global_step/max_steps": f"{step}/40",
        "percentage": "12.50%",
        "elapsed_time": "1h 2m",
        "memory(GiB)": 30.5,
        "train_speed(iter/s)": 0.25,
    }
    for step, loss, norm in ((5, "2.5", 1.5), (10, 2.25, "nan"))
]
EVALUATION = {"eval_loss": 2.75, "eval_runtime": 9.5, "global_step/max_steps": "10/40"}
ENDING = [
    {"train_runtime": 99.5, "train_loss": 9.75, "global_step/max_steps": "10/40"},
    {"last_model_checkpoint": "/x", "best_metric": 2.75, "log_history": [{"loss": 1.0}]},
]


def write(tmp_path: Path, rows: list[dict[str, object]], end: str = "") -> Path:
    path = tmp_path / "logging.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)
    return path


def test_rows_are_read_exactly(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, [*ROWS, EVALUATION, *ENDING]))
    assert log.format == "swift"
    (run,) = log.runs
    assert run.series["loss"].steps.tolist() == [5, 10]
    assert run.series["loss"].values.tolist() == [2.5, 2.25]
    assert run.series["grad_norm"].values.tolist()[0] == 1.5
    assert run.series["grad_norm"].values[1] != run.series["grad_norm"].values[1]
    assert run.series["eval_loss"].steps.tolist() == [10]
    assert run.total_steps == 40
    assert {"loss", "grad_norm", "lr", "epoch", "token_acc", "eval_loss"} <= set(run.series)
    assert not {"train_loss", "memory_gib", "percentage"} & set(run.series)


def test_megatron_swift(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"lm loss": 2.5, "grad_norm": 1.0, "iteration": "5/40"},
        {"lm loss": 2.0, "grad_norm": 1.0, "iteration": "10/40"},
    ]
    log = read_log(write(tmp_path, rows))
    assert log.format == "swift"
    assert log.runs[0].series["loss"].steps.tolist() == [5, 10]
    assert log.runs[0].total_steps == 40


def test_a_cut_last_line_is_skipped(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, ROWS, '{"loss": 2.0, "global_step/max_st'))
    assert log.runs[0].series["loss"].steps.tolist() == [5, 10]


def test_hostile_steps(tmp_path: Path) -> None:
    for text in ("x/y", "/", "5", "9" * 50 + "/9", "-5/40", ""):
        rows = [*ROWS, {"loss": 2.0, "global_step/max_steps": text}]
        (run, *_) = read_log(write(tmp_path, rows)).runs
        assert run.series["loss"].values[:2].tolist() == [2.5, 2.25]


def test_a_directory_and_recognition(tmp_path: Path) -> None:
    path = write(tmp_path / ".", ROWS)
    (run,) = read_log(tmp_path).runs
    assert run.series["loss"].steps.tolist() == [5, 10]
    assert ranking(FileSource(path).sample())[0][1].name == "swift"
    path.write_text('{"iteration": 5, "loss": 2.5}\n{"iteration": 6, "loss": 2.5}\n')
    assert "swift" not in [reader.name for _, reader in ranking(FileSource(path).sample())]
