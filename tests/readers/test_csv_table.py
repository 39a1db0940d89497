"""Tables with a header, however their fields are parted, and the exports of trackers."""

import math
from pathlib import Path

import pytest

from foreshock.core.errors import LogError
from foreshock.core.log import Log, LoggedRun
from foreshock.logs import ranking, read_log
from foreshock.source import FileSource


def read(tmp_path: Path, text: str | bytes, name: str = "x.csv", **kwargs: object) -> Log:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_log(path, **kwargs)  # type: ignore[arg-type]


def points(run: LoggedRun, signal: str) -> list[tuple[int, float]]:
    one = run.series[signal]
    return list(zip(one.steps.tolist(), one.values.tolist(), strict=True))


def test_a_plain_table_is_read_exactly(tmp_path: Path) -> None:
    log = read(
        tmp_path, "step,loss,lr,elapsed_sec\n10,3.5,1e-3,0.5\n20,nan,2e-3,1.0\n30,inf,,1.5\n"
    )
    assert log.format == "csv_table"
    (run,) = log.runs
    assert run.series["loss"].steps.tolist() == [10, 20, 30]
    assert run.series["loss"].values[0] == 3.5
    assert math.isnan(run.series["loss"].values[1])
    assert run.series["loss"].values[2] == math.inf
    assert points(run, "lr") == [(10, 0.001), (20, 0.002)]
    assert set(run.series) == {"loss", "lr"}
    assert run.series["loss"].lines.tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    "text",
    [
        "step\tloss\tlr\n10\t3.5\t0.5\n20\t1234.5\t0.25\n",
        "step;loss;lr\n10;3,5;0,5\n20;1.234,5;0,25\n",
        "step;loss;lr\n10;3.5;0.5\n20;1234.5;0.25\n",
        '"step","loss","lr"\n"10","3.5","0.5"\n"20","1,234.5","0.25"\n',
        'step,loss,lr\n10,3.5,0.5\n20,"1,234.5",0.25\n',
        "\ufeffstep,loss,lr\r\n10,3.5,0.5\r\n20,1234.5,0.25\r\n",
        "# a run\n\n#step,loss,lr\n10,3.5,0.5\n20,1234.5,0.25\n",
        "   step,   loss,   lr\n     10,    3.5,  0.5\n     20, 1234.5, 0.25\n",
        " | step | loss | lr\n0|10|3.5|0.5\n1|20|1234.5|0.25\n",
        "step,loss,lr\n0,10,3.5,0.5\n1,20,1234.5,0.25\n",
    ],
)
def test_every_way_to_write_the_same_table(tmp_path: Path, text: str) -> None:
    (run,) = read(tmp_path, text).runs
    assert points(run, "loss") == [(10, 3.5), (20, 1234.5)]
    assert points(run, "lr") == [(10, 0.5), (20, 0.25)]


def test_validation_rows_are_told_from_training(tmp_path: Path) -> None:
    text = (
        "step,secs,split,loss,lr\n5,1,train,4.0,0.1\n5,2,val,4.5,0.1\n10,3,train,3.0,0.1\n"
        "10,4,val,nan,0.1\n"
    )
    (run,) = read(tmp_path, text).runs
    assert points(run, "loss") == [(5, 4.0), (10, 3.0)]
    assert points(run, "eval_loss")[0] == (5, 4.5)
    assert math.isnan(run.series["eval_loss"].values[1])
    assert points(run, "lr") == [(5, 0.1), (10, 0.1)]


def test_keras_counts_epochs(tmp_path: Path) -> None:
    text = "epoch,accuracy,loss,val_accuracy,val_loss\n0,0.5,2.5,0.4,2.75\n1,0.6,2.0,NA,NA\n"
    (run,) = read(tmp_path, text).runs
    assert points(run, "loss") == [(0, 2.5), (1, 2.0)]
    assert points(run, "eval_loss") == [(0, 2.75)]


def test_losses_of_parts_are_added_up(tmp_path: Path) -> None:
    text = (
        "                  epoch,      train/box_loss,      train/cls_loss,  val/box_loss,"
        "        val/cls_loss,    lr/pg0\n"
        "                      1,                1.25,                 2.5,           1.5,"
        "                 nan,       0.5\n"
        "                      2,                 1.0,                 2.0,           1.0,"
        "                 2.0,       0.5\n"
    )
    (run,) = read(tmp_path, text, "results.csv").runs
    assert points(run, "loss") == [(1, 3.75), (2, 3.0)]
    assert math.isnan(run.series["eval_loss"].values[0])
    assert points(run, "eval_loss")[1] == (2, 3.0)
    assert points(run, "lr") == [(1, 0.5), (2, 0.5)]
    (tmp_path / "args.yaml").write_text("task: detect\n")
    assert read_log(tmp_path).format == "csv_table"


EXPORT = (
    '"Step","red-fox-1 - train/loss","red-fox-1 - train/loss__MIN","red-fox-1 - train/loss__MAX",'
    '"a - b - train/loss","a - b - train/loss__MIN","a - b - train/loss__MAX"\n'
    '"0","4.5","4.5","4.5","5.5","5.5","5.5"\n"10","4.25","4.25","4.25","","",""\n'
    '"20","4","4","4","5","5","5"\n'
)


def test_a_wandb_export_holds_several_runs(tmp_path: Path) -> None:
    log = read(tmp_path, EXPORT, "wandb_export.csv")
    one, two = log.runs
    assert points(one, "loss") == [(0, 4.5), (10, 4.25), (20, 4.0)]
    assert points(two, "loss") == [(0, 5.5), (20, 5.0)]
    assert set(one.series) == {"loss"}
    assert log.facts["runs"] == "red-fox-1, a - b"


def test_many_runs_of_one_export_are_no_epochs(tmp_path: Path) -> None:
    names = [f"r{i}" for i in range(6)]
    head = ",".join(f'"{name} - loss","{name} - loss__MIN"' for name in names)
    rows = [f'"{s}",' + ",".join(f'"{9 - s}","0"' for _ in names) for s in range(8)]
    log = read(tmp_path, "\n".join([f'"Step",{head}', *rows]))
    assert [run.series["loss"].steps.tolist() for run in log.runs] == [list(range(8))] * 6


def test_a_tensorboard_download_is_named_after_its_file(tmp_path: Path) -> None:
    text = "Wall time,Step,Value\n1700000000.5,10,3.5\n1700000001.5,20,3.25\n"
    for name, signal in (
        ("run-.-tag-train_loss.csv", "loss"),
        ("run-a_b-tag-eval_loss.csv", "eval_loss"),
        ("2026-01-01_grad_norm.csv", "grad_norm"),
        ("reward.csv", "reward"),
    ):
        (run,) = read(tmp_path, text, name).runs
        assert points(run, signal) == [(10, 3.5), (20, 3.25)]
        assert list(run.series) == [signal]


def test_mlflows_long_table(tmp_path: Path) -> None:
    text = (
        "run_id,key,value,step,timestamp\n"
        + "".join(f"r1,loss,{4 - i / 2},{i},170000000{i}\n" for i in range(3))
        + "".join(f"r1,lr,0.5,{i},170000000{i}\n" for i in range(3))
    )
    (run,) = read(tmp_path, text).runs
    assert points(run, "loss") == [(0, 4.0), (1, 3.5), (2, 3.0)]
    assert points(run, "lr") == [(0, 0.5), (1, 0.5), (2, 0.5)]


def test_the_first_rank_speaks_and_nan_of_others_counts(tmp_path: Path) -> None:
    rows = [f"{s},{r},{'nan' if (s, r) == (2, 1) else 1.0 + r}" for s in range(4) for r in (0, 1)]
    (run,) = read(tmp_path, "\n".join(["step,rank,loss", *rows])).runs
    values = run.series["loss"].values
    assert len(values) == 4
    assert math.isnan(values[2])
    assert values[3] == 1.0


def test_an_appended_header_and_other_columns_further_down(tmp_path: Path) -> None:
    rows = [f"{s},{4.0}" for s in range(0, 100, 10)]
    (run,) = read(tmp_path, "\n".join(["step,loss", *rows, "step,loss", "50,2.0", "60,2.0"])).runs
    assert run.restarts == ((90, 50),)
    assert len(run.series["loss"]) == 12
    log = read(tmp_path, "\n".join(["step,loss", *rows, "step,lr,loss", "100,0.5,2.0"]))
    assert points(log.runs[0], "lr") == [(100, 0.5)]
    assert points(log.runs[0], "loss")[-1] == (100, 2.0)


def test_a_missing_loss_beside_its_learning_rate_is_nan(tmp_path: Path) -> None:
    rows = [f"{s},{2.0 if s < 20 else ''},0.1" for s in range(25)]
    (run,) = read(tmp_path, "\n".join(["step,loss,lr", *rows])).runs
    assert len(run.series["loss"]) == 25
    assert all(math.isnan(one) for one in run.series["loss"].values[20:])


def test_a_cut_last_line_is_skipped(tmp_path: Path) -> None:
    log = read(tmp_path, "step,loss,lr\n10,3.5,0.5\n20,3.25,0.5\n30,3")
    assert points(log.runs[0], "loss") == [(10, 3.5), (20, 3.25)]
    assert any("line 4" in note for note in log.notes)


def test_the_user_may_name_the_columns(tmp_path: Path) -> None:
    text = "tick,q_seconds,r\n10,3.5,1\n20,3.25,2\n"
    (run,) = read(tmp_path, text, labels={"loss": "q_seconds", "step": "tick"}).runs
    assert points(run, "loss") == [(10, 3.5), (20, 3.25)]


@pytest.mark.parametrize(
    "row",
    [
        "9" * 400 + ",2.0",
        "6," + "9" * 5000,
        "-5,2.0",
        "nan,2.0",
        '5,"2.0',
        "5,2.0,3,4,5",
        '"' * 1001 + ",2.0",
        "6,1e999",
        ",",
        "\x00,\x00",
    ],
)
def test_hostile_rows_leave_the_others_readable(tmp_path: Path, row: str) -> None:
    good = [f"{s},2.0" for s in range(1, 6)]
    (run, *_) = read(tmp_path, "\n".join(["step,loss", *good, row])).runs
    assert run.series["loss"].values[:5].tolist() == [2.0] * 5


def test_no_table_is_one_error(tmp_path: Path) -> None:
    for text in ("1,2\n3,4\n", "a,b\n", "words, and more words\n" * 5, '"' * 100_000, ",\n" * 999):
        with pytest.raises(LogError):
            read(tmp_path, text, format="csv_table")


def test_what_is_recognised(tmp_path: Path) -> None:
    def formats(text: str, name: str = "x.csv") -> list[str]:
        (tmp_path / name).write_text(text)
        return [reader.name for _, reader in ranking(FileSource(tmp_path / name).sample())]

    assert formats("step,loss\n1,2.0\n2,1.5\n")[0] == "csv_table"
    assert formats("step;loss\n1;2,0\n2;1,5\n", "log.txt")[0] == "csv_table"
    assert formats("epoch,step,train_loss_step,val_loss\n0,1,2.0,\n0,2,2.0,\n0,2,,1.5\n")[0] == (
        "lightning_csv"
    )
    for text in (
        "step 1, loss 2.0, lr 0.1\nstep 2, loss 1.5, lr 0.1\n",
        "iteration 1/ 9 | lm loss: 2.0 |\niteration 2/ 9 | lm loss: 1.5 |\n",
        '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 2.0}\n',
        "name,city\nada,london\nbob,paris\n",
    ):
        assert "csv_table" not in formats(text)
