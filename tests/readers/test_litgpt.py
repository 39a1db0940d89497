# ruff: noqa: E501 - lines of logs are as long as they are
"""litgpt: the repeated validation loss is not read from the training lines."""

from tests.readers.reading import certainty, first, points, run_of


def line(step: int, loss: str, val: str = "n/a") -> str:
    return (
        f"Epoch 1 | iter {step} step {step // 2} | loss train: {loss}, val: {val} | "
        "iter time: 90.25 ms (step) remaining time: 0:01:11\n"
    )


def test_rows(tmp_path) -> None:
    text = (
        line(1, "4.500") + line(2, "nan")
        + "iter 2: val loss 4.2500, val time: 90.25 ms\n"
        + line(3, "3.500", "4.250") + line(4, "3.250", "4.250")
        + "Final evaluation | val loss: 3.125 | val ppl: 22.760\n" + "Epoch 1 | iter 5 step 2 | loss tr"
    )  # fmt: skip
    run = run_of(tmp_path, text, "litgpt")
    assert points(run, "loss") == [(1, 4.5), (2, None), (3, 3.5), (4, 3.25)]
    assert points(run, "eval_loss") == [(2, 4.25), (4, 3.125)]
    assert len(run.series) == 2


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, line(1, "4.5") * 3) == "litgpt"
    assert certainty(tmp_path, "iter 10: loss 9.5, time 90.25ms\n", "litgpt") == 0
