"""modded-nanogpt: a time that is nan, and a program before its log."""

from tests.readers.reading import certainty, first, points, run_of

CODE = (
    'print0(f"step:{step+1}/{train_steps} train_loss:{loss:.4f} step_avg:{t:.2f}ms")\n' + "=" * 99
)


def line(step: int, what: str, loss: str, average: str = "nan") -> str:
    return f"step:{step}/900 {what}:{loss} train_time:{step * 90}ms step_avg:{average}ms\n"


def test_rows(tmp_path) -> None:
    text = (
        CODE + "\n"
        + line(0, "val_loss", "9.6250") + line(1, "train_loss", "9.5000")
        + line(2, "train_loss", "9.2500", "90.25") + line(3, "train_loss", "nan", "90.25")
        + line(3, "val_loss", "9.1250", "90.25") + "step:4/900 train_l"
    )  # fmt: skip
    run = run_of(tmp_path, text, "modded_nanogpt")
    assert points(run, "loss") == [(1, 9.5), (2, 9.25), (3, None)]
    assert points(run, "eval_loss") == [(0, 9.625), (3, 9.125)]
    assert run.total_steps == 900
    assert len(run.series) == 2


def test_newer_versions_print_no_training_loss(tmp_path) -> None:
    text = (
        "step:0/900 val_loss:9.62501 train_time:0.087s step_avg:87.44ms\n"
        "step:1/900 train_time:90ms step_avg:90.25ms\n"
        "step:250/900 val_loss:4.12500 train_time:36.887s step_avg:147.44ms\n"
    )
    run = run_of(tmp_path, text, "modded_nanogpt")
    assert points(run, "eval_loss") == [(0, 9.62501), (250, 4.125)]
    assert set(run.series) == {"eval_loss"}


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, CODE + "\n" + line(1, "train_loss", "9.5") * 3) == "modded_nanogpt"
    assert certainty(tmp_path, CODE + "\nstep:1 - train/loss:2.5\n", "modded_nanogpt") == 0
