# ruff: noqa: E501 - lines of logs are as long as they are
"""NeMo: its own lines, and Lightning's bar."""

from tests.readers.reading import certainty, first, points, run_of


def line(epoch: int, iteration: int, step: int, loss: str) -> str:
    return (
        f"Training epoch {epoch}, iteration {iteration}/99 | lr: 1e-06 | global_batch_size: 16 | "
        f"global_step: {step} | reduced_train_loss: {loss} | train_step_timing in s: 0.5 | "
        f"consumed_samples: {step * 16} | val_loss: 9.25\n"
    )


def test_the_global_step_counts(tmp_path) -> None:
    text = (
        line(0, 98, 98, "9.5")
        + line(0, 99, 99, "nan")
        + line(1, 0, 100, "9.25")
        + line(1, 1, 101, "9")
    )
    run = run_of(tmp_path, text + "Training epoch 1, iteration 2/99 | lr: 1e", "nemo")
    assert points(run, "loss") == [(98, 9.5), (99, None), (100, 9.25), (101, 9.0)]
    assert points(run, "lr")[0] == (98, 1e-6)
    assert not {"consumed_samples", "train_step_timing_in_s", "global_step"} & set(run.series)


def test_the_bar(tmp_path) -> None:
    bar = "\rEpoch 0:  10%|█  | {}/50 [00:10<01:30, v_num=0, reduced_train_loss={}, global_step={}.0, lr=1e-5]"
    text = bar.format(5, "9.5", 4) + bar.format(5, "9.5", 4) + bar.format(6, "nan", 5) + "\n"
    run = run_of(tmp_path, text, "nemo")
    assert points(run, "loss") == [(4, 9.5), (5, None)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, line(0, 1, 1, "9.5") * 3) == "nemo"
    assert certainty(tmp_path, " iteration 5/ 10 | lm loss: 2.5 |\n", "nemo") == 0
