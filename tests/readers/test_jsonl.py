"""JSON that holds a table, in every shape that people write it."""

import json
import math
from pathlib import Path

import pytest

from foreshock.core.errors import LogError
from foreshock.core.log import Log, LoggedRun
from foreshock.logs import ranking, read_log
from foreshock.source import FileSource


def read(tmp_path: Path, text: str | bytes, name: str = "metrics.jsonl", **kwargs: object) -> Log:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_log(path, **kwargs)  # type: ignore[arg-type]


def points(run: LoggedRun, signal: str) -> list[tuple[int, float]]:
    one = run.series[signal]
    return list(zip(one.steps.tolist(), one.values.tolist(), strict=True))


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def first_format(tmp_path: Path, text: str, name: str = "x.jsonl") -> list[str]:
    (tmp_path / name).write_text(text)
    return [reader.name for _, reader in ranking(FileSource(tmp_path / name).sample())]


def test_lines_are_read_exactly(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        lines(
            {"step": 10, "loss": 3.5, "lr": 0.1, "grad_norm": 2, "tokens_per_sec": 9000.0},
            {"step": 20, "loss": 3.25, "lr": 0.2, "grad_norm": 1.5, "tokens_per_sec": 9100.0},
            {"step": 30, "loss": None, "eval_loss": 3.0},
        ),
    )
    assert log.format == "jsonl"
    (run,) = log.runs
    assert points(run, "loss") == [(10, 3.5), (20, 3.25)]
    assert points(run, "grad_norm") == [(10, 2.0), (20, 1.5)]
    assert points(run, "eval_loss") == [(30, 3.0)]
    assert set(run.series) == {"loss", "lr", "grad_norm", "eval_loss"}
    assert run.series["loss"].lines.tolist() == [1, 2]


def test_numbers_may_be_strings_and_nan_may_be_bare(tmp_path: Path) -> None:
    text = (
        '{"step": "1,000", "loss": "2.5"}\n{"step": "1,001", "loss": NaN}\n'
        '{"step": "1,002", "loss": "Infinity"}\n{"step": "1,003", "loss": "-inf"}\n'
        '{"step": "1,004", "loss": true}\n'
    )
    found = read(tmp_path, text).runs[0].series["loss"]
    assert found.steps.tolist() == [1000, 1001, 1002, 1003]
    assert found.values[0] == 2.5
    assert math.isnan(found.values[1])
    assert found.values[2:].tolist() == [math.inf, -math.inf]


def test_objects_inside_are_flattened(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        lines(
            {"step": 1, "data": {"loss": 2.0, "lr": 0.5}, "layer": {"0": {"norm": 7.0}}},
            {"step": 2, "data": {"loss": 1.5, "lr": 0.5}, "val": {"loss": 2.25}},
        ),
    )
    (run,) = log.runs
    assert points(run, "loss") == [(1, 2.0), (2, 1.5)]
    assert points(run, "eval_loss") == [(2, 2.25)]
    assert points(run, "layer_0_norm") == [(1, 7.0)]


def test_a_column_that_names_the_split_tells_evaluations(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        lines(
            {"split": "train", "step": 5, "loss": 4.0, "lr": 0.1},
            {"split": "val", "step": 5, "loss": 4.5, "lr": 0.1},
            {"split": "train", "step": 10, "loss": 3.0, "lr": 0.1},
            {"split": "val", "step": 10, "loss": 3.75, "lr": 0.1},
            {"split": "test", "step": 10, "loss": 5.0, "lr": 0.1},
        ),
    )
    (run,) = log.runs
    assert points(run, "loss") == [(5, 4.0), (10, 3.0)]
    assert points(run, "eval_loss") == [(5, 4.5), (10, 3.75)]
    assert points(run, "test_loss") == [(10, 5.0)]
    assert points(run, "lr") == [(5, 0.1), (10, 0.1)]
    assert not log.notes


def test_mmcv_counts_iterations_through_its_epochs(tmp_path: Path) -> None:
    rows = [{"env_info": "x", "seed": 1}]
    rows += [
        {"mode": "train", "epoch": epoch, "iter": i, "lr": 0.1, "time": 0.5, "loss": 9.0 - epoch}
        for epoch in (1, 2, 3)
        for i in (50, 100)
    ]
    rows.insert(3, {"mode": "val", "epoch": 1, "iter": 37, "lr": 0.1, "bbox_mAP": 0.25})
    (run,) = read(tmp_path, lines(*rows), "20260101.log.json").runs
    assert run.series["loss"].steps.tolist() == [50, 100, 150, 200, 250, 300]
    assert points(run, "eval_bbox_map") == [(100, 0.25)]


def test_one_row_an_epoch_still_rises(tmp_path: Path) -> None:
    rows = [{"mode": "train", "epoch": e, "iter": 50, "loss": 1.0 * e} for e in (1, 2, 3)]
    (run,) = read(tmp_path, lines(*rows)).runs
    assert points(run, "loss") == [(50, 1.0), (100, 2.0), (150, 3.0)]


def test_epochs_count_where_nothing_finer_does(tmp_path: Path) -> None:
    rows = [{"train_loss": 2.0 - e, "test_loss": 2.5 - e, "epoch": e} for e in range(3)]
    (run,) = read(tmp_path, lines(*rows), "log.txt").runs
    assert points(run, "loss") == [(0, 2.0), (1, 1.0), (2, 0.0)]
    assert points(run, "eval_loss") == [(0, 2.5), (1, 1.5), (2, 0.5)]


def test_two_runs_appended_to_one_file(tmp_path: Path) -> None:
    rows = [{"iteration": 19 + 20 * i, "total_loss": 3.0 - i / 10} for i in range(10)]
    log = read(tmp_path, lines(*rows, *rows), "metrics.json")
    assert [run.series["loss"].steps.tolist() for run in log.runs] == [
        [19 + 20 * i for i in range(10)]
    ] * 2


def test_a_restart_is_an_attempt_of_the_same_run(tmp_path: Path) -> None:
    steps = [*range(100, 200, 10), *range(150, 220, 10)]
    (run,) = read(tmp_path, lines(*({"step": s, "loss": 1.0} for s in steps))).runs
    assert run.restarts == ((190, 150),)
    assert run.series["loss"].attempts.tolist() == [0] * 10 + [1] * 7


def test_a_missing_loss_beside_its_learning_rate_is_nan(tmp_path: Path) -> None:
    rows = [{"step": i, "loss": 2.0, "lr": 0.1} for i in range(20)]
    rows += [{"step": i, "loss": None, "lr": 0.1} for i in range(20, 25)]
    rows += [{"step": 25, "loss": None, "eval_loss": 4.0, "lr": None}]
    log = read(tmp_path, lines(*rows))
    values = log.runs[0].series["loss"].values
    assert len(values) == 25
    assert all(math.isnan(one) for one in values[20:])
    assert any("NaN" in note for note in log.notes)


def test_a_loss_that_is_logged_less_often_is_not_nan(tmp_path: Path) -> None:
    rows = [
        {"step": i, "lr": 0.1, "grad_norm": 1.0, **({"loss": 2.0} if i % 5 == 0 else {})}
        for i in range(100)
    ]
    log = read(tmp_path, lines(*rows))
    assert len(log.runs[0].series["loss"]) == 20
    assert not log.notes


def test_an_array_of_objects(tmp_path: Path) -> None:
    rows = [{"step": i, "loss": 5.0 - i} for i in range(4)]
    for text in (json.dumps(rows), json.dumps(rows, indent=2)):
        (run,) = read(tmp_path, text, "history.json").runs
        assert points(run, "loss") == [(i, 5.0 - i) for i in range(4)]


def test_a_cut_array_gives_what_is_whole(tmp_path: Path) -> None:
    text = json.dumps([{"step": i, "loss": 5.0 - i} for i in range(4)], indent=1)
    log = read(tmp_path, text[:-12], "history.json")
    assert points(log.runs[0], "loss") == [(0, 5.0), (1, 4.0), (2, 3.0)]
    assert any("cut" in note for note in log.notes)


def test_an_object_of_lists(tmp_path: Path) -> None:
    history = {"loss": [3.0, 2.0, 1.0], "val_loss": [3.5, 2.5, 1.5], "best": [1.0, 2.0]}
    log = read(tmp_path, json.dumps(history), "history.json")
    assert points(log.runs[0], "loss") == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert points(log.runs[0], "eval_loss") == [(1, 3.5), (2, 2.5), (3, 1.5)]
    assert any("'best'" in note for note in log.notes)
    text = json.dumps({"step": [10, 20], "train": {"loss": [3.0, 2.0]}}, indent=2)
    assert points(read(tmp_path, text, "h.json").runs[0], "loss") == [(10, 3.0), (20, 2.0)]
    text = json.dumps({"loss": {"0": 3.0, "1": 2.5}, "lr": {"0": 0.1, "1": 0.2}})
    assert points(read(tmp_path, text, "p.json").runs[0], "loss") == [(0, 3.0), (1, 2.5)]


def test_a_tensorboard_download_is_named_after_its_file(tmp_path: Path) -> None:
    text = json.dumps([[1700000000.5 + i, 10 * i, 4.0 - i] for i in range(3)])
    (run,) = read(tmp_path, text, "run-.-tag-train_loss.json").runs
    assert points(run, "loss") == [(0, 4.0), (10, 3.0), (20, 2.0)]


def test_dllogger_and_prefixed_lines(tmp_path: Path) -> None:
    text = "".join(
        f'DLLL {{"type": "LOG", "step": [{e}, {s}], "data": {{"loss": {9 - s / 10}}}}}\n'
        for e, s in ((0, 10), (0, 20), (1, 30))
    )
    assert points(read(tmp_path, text).runs[0], "loss") == [(10, 8.0), (20, 7.0), (30, 6.0)]


def test_rows_with_a_value_and_its_name(tmp_path: Path) -> None:
    text = lines(
        *({"key": "train_loss", "value": 3.0 - i, "metadata": {"step_num": i}} for i in range(3)),
        {"key": "block_start", "value": None, "metadata": {"step_num": 3}},
    )
    assert points(read(tmp_path, text).runs[0], "loss") == [(0, 3.0), (1, 2.0), (2, 1.0)]


def test_several_objects_on_a_line_and_a_cut_last_one(tmp_path: Path) -> None:
    text = (
        '{"step": 1, "loss": 2.0}{"step": 2, "loss": 1.5}\n{"step": 3, "loss": 1.25}\n{"step": 4,'
    )
    log = read(tmp_path, text)
    assert points(log.runs[0], "loss") == [(1, 2.0), (2, 1.5), (3, 1.25)]
    assert any("line 3" in note for note in log.notes)


def test_the_first_rank_speaks(tmp_path: Path) -> None:
    rows = [{"rank": r, "step": s, "loss": 1.0 + r} for s in range(4) for r in (0, 1)]
    rows[5]["loss"] = math.nan
    (run,) = read(tmp_path, lines(*rows)).runs
    assert run.series["loss"].values[:2].tolist() == [1.0, 1.0]
    assert math.isnan(run.series["loss"].values[2])


def test_runs_beside_each_other_are_told_apart(tmp_path: Path) -> None:
    rows = [{"run": r, "step": s, "loss": 1.0 + s} for s in range(5) for r in ("a", "b")]
    log = read(tmp_path, lines(*rows))
    assert [run.series["loss"].steps.tolist() for run in log.runs] == [[0, 1, 2, 3, 4]] * 2


def test_the_average_of_the_run_is_no_value(tmp_path: Path) -> None:
    rows = [{"loss": 2.0, "step": i} for i in range(3)]
    summary = {"train_runtime": 12.5, "train_loss": 7.0, "step": 3}
    (run,) = read(tmp_path, lines(*rows, summary)).runs
    assert set(run.series) == {"loss"}


def test_a_step_column_of_another_name(tmp_path: Path) -> None:
    rows = [{"n": 100 + 10 * i, "loss": 2.0} for i in range(6)]
    assert read(tmp_path, lines(*rows)).runs[0].series["loss"].steps[0] == 100
    rows = [{"counter": 100 + 10 * i, "speed": 5, "loss": 2.0} for i in range(4)]
    log = read(tmp_path, lines(*rows), labels={"step": "counter"})
    assert log.runs[0].series["loss"].steps.tolist() == [100, 110, 120, 130]


@pytest.mark.parametrize(
    "hostile",
    [
        '{"a":' * 100_000,
        '{"loss": ' + "9" * 6000 + "}",
        '{"step": ' + "9" * 3000 + ', "loss": 1e999}',
        '{"step": -5, "loss": 2.0}',
        '{"step": NaN, "loss": 2.0}',
        '{"step": 1e300, "loss": 2.0}',
        '{"step": [], "loss": [[]]}',
        "[" * 100_000,
        '{"": 1, "loss": null}',
        '{"step": 5, "loss": ' + '{"b":' * 50 + "1" + "}" * 51,
    ],
)
def test_hostile_lines_leave_the_others_readable(tmp_path: Path, hostile: str) -> None:
    good = [{"step": i, "loss": 2.0} for i in range(1, 6)]
    (run, *_) = read(tmp_path, f"{lines(*good)}{hostile}\n").runs
    assert run.series["loss"].values[:5].tolist() == [2.0] * 5


@pytest.mark.parametrize("text", ["[" * 50_000, '[{"a": ' + "[" * 50_000, '{"loss": [' * 9999])
def test_hostile_documents_end_in_one_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(LogError):
        read(tmp_path, text, "x.json", format="jsonl")


def test_keys_without_end_are_bounded(tmp_path: Path) -> None:
    rows = [{"step": i, f"k{i}": 1.0, "loss": 2.0} for i in range(3000)]
    (run,) = read(tmp_path, lines(*rows)).runs
    assert len(run.series["loss"]) == 3000
    assert len(run.series) < 600


def test_other_encodings(tmp_path: Path) -> None:
    text = lines(*({"step": i, "loss": 1.5} for i in range(3)))
    for encoding in ("utf-16", "utf-8-sig"):
        (run,) = read(tmp_path, text.encode(encoding)).runs
        assert len(run.series["loss"]) == 3
    array = json.dumps([{"step": i, "loss": 1.5} for i in range(3)], indent=1)
    (run,) = read(tmp_path, array.encode("utf-8-sig"), "a.json").runs
    assert len(run.series["loss"]) == 3


def test_what_is_recognised(tmp_path: Path) -> None:
    text = lines({"step": 1, "loss": 2.0}, {"step": 2, "loss": 2.0})
    assert first_format(tmp_path, text)[0] == "jsonl"
    assert "jsonl" not in first_format(tmp_path, "step 1 loss 2.0\nstep 2 loss 1.5\n")
    assert "jsonl" not in first_format(tmp_path, "{'loss': 2.0, 'step': 1}\n" * 5)
    assert "jsonl" not in first_format(tmp_path, '{"name": "x", "deps": ["a", "b"]}', "p.json")
    state = '{"global_step": 2, "log_history": [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1}]}'
    assert first_format(tmp_path, state)[0] == "hf_trainer_state"
    row = {"current_steps": 5, "total_steps": 9, "loss": 2.0}
    assert first_format(tmp_path, lines(row, row))[0] == "llama_factory"
    assert first_format(tmp_path, "step,loss\n1,2.0\n2,1.5\n", "x.csv")[0] == "csv_table"
