"""`trainer_state.json`: NaN literals, evaluations, the average at the end, checkpoints."""

import json
import math
from pathlib import Path

import pytest

from foreshock.core.errors import LogError
from foreshock.logs import ranking, read_log
from foreshock.source import FileSource

ROWS = [
    {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 0.001, "loss": 4.5, "step": 5},
    {"epoch": 0.2, "grad_norm": math.nan, "learning_rate": 0.002, "loss": 4.25, "step": 10},
    {"epoch": 0.2, "eval_loss": 4.75, "eval_runtime": 3.5, "eval_steps_per_second": 8, "step": 10},
    {"epoch": 0.3, "grad_norm": 2.5, "learning_rate": 0.003, "loss": 4.0, "step": 15},
]
SUMMARY = {"epoch": 0.3, "step": 15, "total_flos": 9e9, "train_loss": 9.5, "train_runtime": 60.5}


def state(rows: list[dict[str, float]], *, step: int = 15, indent: int | None = 2) -> str:
    return json.dumps(
        {
            "best_metric": None,
            "global_step": step,
            "log_history": rows,
            "max_steps": 40,
            "num_train_epochs": 3,
            "stateful_callbacks": {"EarlyStopping": {"args": {"list": [1, 2]}}},
        },
        indent=indent,
    )


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("indent", [None, 2])
def test_the_history_is_read_exactly(tmp_path: Path, indent: int | None) -> None:
    path = write(tmp_path / "trainer_state.json", state([*ROWS, SUMMARY], indent=indent))
    log = read_log(path)
    assert log.format == "hf_trainer_state"
    (run,) = log.runs
    assert set(run.series) == {"epoch", "grad_norm", "lr", "loss", "eval_loss"}
    assert run.series["loss"].steps.tolist() == [5, 10, 15]
    assert run.series["loss"].values.tolist() == [4.5, 4.25, 4.0]
    assert math.isnan(run.series["grad_norm"].values[1])
    assert run.series["lr"].values.tolist() == [0.001, 0.002, 0.003]
    assert run.series["eval_loss"].steps.tolist() == [10]
    assert run.series["eval_loss"].values.tolist() == [4.75]
    assert run.total_steps == 40


def test_the_average_of_the_run_is_a_fact(tmp_path: Path) -> None:
    log = read_log(write(tmp_path / "trainer_state.json", state([*ROWS, SUMMARY])))
    assert log.facts["train_loss"] == "9.5"
    assert log.facts["num_train_epochs"] == "3"
    assert 9.5 not in log.runs[0].series["loss"].values


def test_the_furthest_checkpoint_is_read(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint-5/trainer_state.json", state(ROWS[:1], step=5))
    write(tmp_path / "checkpoint-10/trainer_state.json", state(ROWS[:3], step=10))
    write(tmp_path / "checkpoint-9/trainer_state.json", state(ROWS[:2], step=9))
    (run,) = read_log(tmp_path).runs
    assert run.series["loss"].steps.tolist() == [5, 10]
    write(tmp_path / "trainer_state.json", state(ROWS, step=15))
    (run,) = read_log(tmp_path).runs
    assert run.series["loss"].steps.tolist() == [5, 10, 15]


def test_folders_are_runs(tmp_path: Path) -> None:
    write(tmp_path / "a/checkpoint-5/trainer_state.json", state(ROWS[:1], step=5))
    write(tmp_path / "b/checkpoint-15/trainer_state.json", state(ROWS, step=15))
    log = read_log(tmp_path)
    assert [run.series["loss"].steps.tolist() for run in log.runs] == [[5], [5, 10, 15]]


def test_a_cut_file_gives_what_is_whole(tmp_path: Path) -> None:
    text = state(ROWS)
    log = read_log(write(tmp_path / "x.json", text[: text.index("4.75")]))
    assert log.runs[0].series["loss"].steps.tolist() == [5, 10]
    assert any("cut" in note for note in log.notes)


def test_hostile_values_are_skipped(tmp_path: Path) -> None:
    rows = ROWS[0] | {"grad_norm": 10**400, "memory(GiB)": 5, "text": "x", "flag": True, "n": [1]}
    (run,) = read_log(write(tmp_path / "x.json", state([rows, *ROWS[1:]]))).runs
    assert set(run.series) == {"epoch", "grad_norm", "lr", "loss", "eval_loss"}
    assert run.series["grad_norm"].steps.tolist() == [10, 15]
    deep = '{"log_history": [{"step": 1, "loss": ' + '{"a":' * 99_999
    with pytest.raises(LogError):
        read_log(write(tmp_path / "y.json", deep))


def test_what_is_recognised(tmp_path: Path) -> None:
    def formats(text: str) -> list[str]:
        sample = FileSource(write(tmp_path / "x.json", text)).sample()
        return [reader.name for _, reader in ranking(sample)]

    assert formats(state(ROWS))[0] == "hf_trainer_state"
    assert "hf_trainer_state" not in formats(json.dumps(ROWS))
    assert "hf_trainer_state" not in formats('print("log_history", [1])')
