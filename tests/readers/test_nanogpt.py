"""nanoGPT and lit-llama."""

from tests.readers.reading import certainty, first, points, run_of


def test_steps_and_evaluations(tmp_path) -> None:
    text = (
        "number of parameters: 10.65M\n"
        "step 0: train loss 9.5000, val loss 9.6250\n"
        "iter 0: loss 9.7500, time 4500.99ms, mfu -100.00%\n"
        "iter 10: loss nan, time 90.25ms, mfu 15.34%\n"
        "step 20: train loss 5.5000, val loss nan\n"
        "saving checkpoint to out\n"
        "iter 20: loss 5.2500 BPC, time 90.25ms, mfu 15.34%\n"
        "iter 30: lo"
    )
    run = run_of(tmp_path, text, "nanogpt")
    assert points(run, "loss") == [(0, 9.75), (10, None), (20, 5.25)]
    assert points(run, "train_loss") == [(0, 9.5), (20, 5.5)]
    assert points(run, "eval_loss") == [(0, 9.625), (20, None)]
    assert len(run.series) == 3


def test_quoted_and_with_times_before(tmp_path) -> None:
    text = "".join(
        f"> 2023-05-01 09:30:{step:02} iter {step}: loss {step}.5, time 900.25ms, mfu 15.34%\n> \n"
        for step in (10, 20, 30)
    )
    assert points(run_of(tmp_path, text, "nanogpt"), "loss") == [(10, 10.5), (20, 20.5), (30, 30.5)]


def test_evaluations_alone_are_the_loss(tmp_path) -> None:
    text = "step 0: train loss 9.5, val loss 9.6\nstep 250: train loss 5.5, val loss 5.75\n"
    run = run_of(tmp_path, text, "nanogpt")
    assert points(run, "loss") == [(0, 9.5), (250, 5.5)]
    assert points(run, "eval_loss") == [(0, 9.6), (250, 5.75)]


def test_lit_llama_counts_iterations(tmp_path) -> None:
    text = (
        "iter 0 step 0: loss 9.5, iter time: 90.25ms\n"
        "iter 1 step 1: loss 9.25, iter time: 90.25ms (optimizer.step)\n"
        "iter 1: val loss 9.75, val time: 90.25ms\n"
    )
    run = run_of(tmp_path, text, "nanogpt")
    assert points(run, "loss") == [(0, 9.5), (1, 9.25)]
    assert points(run, "eval_loss") == [(1, 9.75)]


def test_a_resumed_run_goes_back(tmp_path) -> None:
    line = "iter {}: loss {}.5, time 90.25ms, mfu 15.34%\n"
    text = "".join(line.format(n, 9) for n in range(0, 60, 10))
    text += "Resuming training from out\n" + "".join(line.format(n, 8) for n in range(40, 80, 10))
    run = run_of(tmp_path, text, "nanogpt")
    assert run.restarts == ((50, 40),)
    assert points(run, "loss")[5:8] == [(50, 9.5), (40, 8.5), (50, 8.5)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, "iter 10: loss 9.5, time 90.25ms, mfu 15.34%\n" * 3) == "nanogpt"
    assert (
        certainty(tmp_path, "Iter 10: Train loss 1.5, It/sec 0.5\nstep 5 loss 3\n", "nanogpt") == 0
    )


def test_a_loss_with_an_equals_sign_is_another_format(tmp_path) -> None:
    text = "INFO:tensorflow:global step 408: loss = 0.125 (0.273 sec/step)\n" * 3
    assert certainty(tmp_path, text, "nanogpt") == 0
