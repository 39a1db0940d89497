"""Text whose lines name steps and losses, whoever wrote it; and text that only speaks of them."""

import pytest

from tests.readers.reading import certainty, first, points, read, run_of

NOTES = """\
- Steady fall: loss 2.50 → 1.25 over iters 1 → 900
- iter 901: lm_loss 1.75, **grad_norm 40.5** (before: about 0.3)
- iter 902: lm_loss 2.25, **grad_norm 90**
- iter 903: lm_loss 2.50, **grad_norm 120**
- Stays near loss ~2.0 for hundreds of iters
"""
CHRONICLE = """\
# Notes
## 2022-05-28 Loss explodes
From step 33700 the loss explodes; it was 2.5 before.
- restart from step 33600, lr 4e-6
- run-2022.05.28-09:18:12
## 2022-06-02 Gradient spikes
At step 42400 the gradient norm shows a spike, the loss drastically changes.
- we went back to step 42000 and left out the data of steps 42001-42200
""" + ("Nothing happened.\n" * 200)


def test_notes_by_hand_and_no_ranges(tmp_path) -> None:
    run = run_of(tmp_path, NOTES, "keyed_text")
    assert points(run, "loss") == [(901, 1.75), (902, 2.25), (903, 2.5)]
    assert points(run, "grad_norm") == [(901, 40.5), (902, 90.0), (903, 120.0)]


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Step [20/100], Loss: 1.25, LR: 1e-4", 20),
        ("2024-05-02 10:00:00,500 - INFO - step 20 - loss=1.25 - lr=1e-4", 20),
        ("I0502 10:00:00.123456 140 train.py:226] step: 20, loss: 1.25, lr: 1e-4, secs: 0.5", 20),
        ("2024-05-02 10:00:00.000 | INFO | app:train:45 - iter 20: loss 1.25, lr 1e-4", 20),
        ("train | step 20 | loss 1.25 | lr 1e-4 | 0.5s/it", 20),
        ("Iteration #20 training loss is 1.25, learning rate: 1e-4", 20),
        ("> INFO: loss = 1.25, step = 1,020, lr = 1e-4 (0.5 sec)", 1020),
        ('"step": 20, "loss": 1.25, "lr": 1e-4', 20),
        ("  Step: 20, LR: 0.0001, Loss: 1.25, TPS: 5", 20),
        ("Step 20, used time 7.17 (s), avg loss so far is 1.25, lr 1e-4", 20),
        ("\u8bad\u7ec3\u6b21\u6570\uff1a20, Loss\uff1a1.25, lr\uff1a1e-4", 20),
    ],
)
def test_forms_of_a_line(tmp_path, line, step) -> None:
    run = run_of(tmp_path, line + "\n", "keyed_text")
    assert points(run, "loss") == [(step, 1.25)]
    assert points(run, "lr") == [(step, 1e-4)]


def test_steps_of_an_epoch_are_counted_through(tmp_path) -> None:
    lines = [
        f"[Epoch {epoch}] [Batch {n}/20] loss={loss} acc=0.5\n"
        for epoch, n, loss in ((1, 10, 4.0), (1, 20, 3.0), (2, 10, "nan"), (2, 20, 2.0))
    ]
    run = run_of(tmp_path, "".join(lines), "keyed_text")
    assert points(run, "loss") == [(10, 4.0), (20, 3.0), (30, None), (40, 2.0)]
    text = "".join(
        f"Epoch: [{epoch}][ {n}/50]\tTime  0.1 ( 0.1)\tLoss 6.5e+00 (6.75e+00)\tAcc@1 0.5\n"
        for epoch, n in ((0, 0), (0, 40), (1, 0))
    )
    run = run_of(tmp_path, text, "keyed_text")
    assert points(run, "loss") == [(0, 6.5), (40, 6.5), (50, 6.5)]


def test_a_step_that_runs_on_over_epochs_is_one_of_the_run(tmp_path) -> None:
    text = "".join(f"epoch {n // 20} step {n}/90 loss {n}.5\n" for n in (10, 15, 20, 30, 40))
    run = run_of(tmp_path, text, "keyed_text")
    assert run.series["loss"].steps.tolist() == [10, 15, 20, 30, 40]


def test_evaluation_and_means_of_an_epoch_stay_apart(tmp_path) -> None:
    text = (
        "epoch 1 step 10 loss 2.5\nepoch 1 step 20 loss 2.25\n"
        "Epoch 1 done, loss: 2.375\nValidation epoch 1: loss 2.0\n"
        "step 30: loss 2.0, val loss 1.75\n"
    )
    run = run_of(tmp_path, text, "keyed_text")
    assert points(run, "loss") == [(10, 2.5), (20, 2.25), (30, 2.0)]
    assert points(run, "epoch_mean_loss") == [(20, 2.375)]
    assert [value for _, value in points(run, "eval_loss")] == [2.0, 1.75]


def test_epochs_are_steps_where_nothing_else_is(tmp_path) -> None:
    text = "".join(f"Epoch {n}/9 - loss: {n}.5 - 3s\n" for n in (1, 2, 3))
    assert points(run_of(tmp_path, text, "keyed_text"), "loss") == [(1, 1.5), (2, 2.5), (3, 3.5)]


def test_a_cut_line_gives_no_false_value(tmp_path) -> None:
    assert len(read(tmp_path, NOTES + "- iter 904: loss", "keyed_text").runs[0].series["loss"]) == 3


def test_is_recognised_and_a_chronicle_is_not(tmp_path) -> None:
    assert first(tmp_path, NOTES) == "keyed_text"
    assert first(tmp_path, "step 5 loss 2.5\n") == "keyed_text"
    assert first(tmp_path, CHRONICLE) == ""
    assert certainty(tmp_path, "At step 3 the loss was 2.5.\n" + "Words.\n" * 9, "keyed_text") == 0


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("[2022-03-14 09:05:16 swin] (main.py 226): INFO Train: [{e}/300][{n}/50]\teta 0:10:52 "
         "lr 0.000710\ttime 0.6408 (0.6516)\tloss 6.50 (6.25)\tgrad_norm 6.5 (10.6)", 50),
        ("Train: {e} [{n:4}/50 ( 40%)]  Loss: 6.50 (6.25)  Time: 4.1s, 62.1/s  LR: 1.000e-06", 50),
        ("INFO - 1 day, 22:12:28 - Epoch: [{e}][{n}]    Time 1.95 (1.95)   Loss 6.50 (6.25)", 41),
    ],
)  # fmt: skip
def test_steps_of_an_epoch_in_other_words(tmp_path, line, steps) -> None:
    rows = ((0, 0), (0, 20), (0, 40), (1, 0), (1, 20))
    text = "".join(line.format(e=e, n=n) + "\n" for e, n in rows)
    run = run_of(tmp_path, text, "keyed_text")
    assert run.series["loss"].steps.tolist() == [0, 20, 40, steps, steps + 20]
    assert set(run.series["loss"].values.tolist()) == {6.5}
    assert "train" not in run.series
    assert first(tmp_path, text) == "keyed_text"


def test_losses_of_parts_bear_their_word(tmp_path) -> None:
    text = "".join(
        f"[GAN] Epoch {n}/9 D Loss: 1.25 G Loss: 0.75 | Val G Loss: 0.5\n" for n in (1, 2, 3)
    )
    run = run_of(tmp_path, text, "keyed_text")
    assert {"d_loss", "g_loss", "eval_g_loss"} == set(run.series)
    text = "".join(f">>> Ep {n}: Loss {n}.5 | ACC 90% | mask loss: 0.25\n" for n in (1, 2, 3))
    run = run_of(tmp_path, text, "keyed_text")
    assert points(run, "loss") == [(1, 1.5), (2, 2.5), (3, 3.5)]
    assert points(run, "mask_loss") == [(1, 0.25), (2, 0.25), (3, 0.25)]
