"""Lightning's `metrics.csv`: sparse rows, versions."""

from pathlib import Path

from foreshock.logs import ranking, read_log
from foreshock.source import FileSource

TEXT = (
    "epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_loss\n"
    "0,,9,,3.5,\n0,0.5,9,,,\n0,,19,,3.0,\n0,,19,,,3.25\n0,,19,3.75,,\n1,,29,,2.5,\n1,,39,,nan,\n"
)


def write(path: Path, text: str = TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_sparse_rows_are_read_exactly(tmp_path: Path) -> None:
    log = read_log(write(tmp_path / "metrics.csv"))
    assert log.format == "lightning_csv"
    (run,) = log.runs
    loss = run.series["loss"]
    assert loss.label == "train_loss_step"
    assert loss.steps.tolist() == [9, 19, 29, 39]
    assert loss.values.tolist()[:3] == [3.5, 3.0, 2.5]
    assert loss.values[3] != loss.values[3]
    assert run.series["eval_loss"].values.tolist() == [3.25]
    assert run.series["train_loss_epoch"].values.tolist() == [3.75]
    assert run.series["lr"].values.tolist() == [0.5]
    assert not log.notes


def test_a_cut_last_line_is_skipped(tmp_path: Path) -> None:
    log = read_log(write(tmp_path / "metrics.csv", TEXT + "1,,49,"))
    assert log.runs[0].series["loss"].steps.tolist()[-1] == 39
    assert any("line 9" in note for note in log.notes)


def test_versions_are_runs_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for version in (10, 2):
        text = TEXT.replace("3.5", f"{version}.0")
        write(tmp_path / f"lightning_logs/version_{version}/metrics.csv", text)
        write(tmp_path / f"lightning_logs/version_{version}/hparams.yaml", "lr: 0.5\n")
    log = read_log(tmp_path)
    assert log.format == "lightning_csv"
    assert [run.series["loss"].values[0] for run in log.runs] == [2.0, 10.0]
    (run,) = read_log(tmp_path / "lightning_logs/version_2").runs
    assert run.series["loss"].values[0] == 2.0


def test_what_is_recognised(tmp_path: Path) -> None:
    def formats(name: str, text: str) -> list[str]:
        sample = FileSource(write(tmp_path / name, text)).sample()
        return [reader.name for _, reader in ranking(sample)]

    assert formats("other.csv", TEXT)[0] == "lightning_csv"
    dense = "epoch,step,loss\n0,1,2.0\n0,2,1.5\n"
    assert formats("metrics.csv", dense)[0] == "lightning_csv"
    assert formats("other.csv", dense)[0] == "csv_table"
    assert "lightning_csv" not in formats("metrics.csv", "step,loss\n1,2.0\n2,1.5\n")
