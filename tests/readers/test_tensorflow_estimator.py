# ruff: noqa: E501 - lines of logs are as long as they are
"""The Estimator never prints a NaN as a number."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, run_of


def test_rows_and_evaluations(tmp_path) -> None:
    text = (
        "INFO:tensorflow:loss = 2.5, step = 1\n"
        "INFO:tensorflow:global_step/sec: 5.3\n"
        "INFO:tensorflow:loss = 2.25, step = 101 (18.200 sec)\n"
        "INFO:tensorflow:Saving dict for global step 101: global_step = 101, loss = 2.75, recall = 0.5\n"
        "I0524 19:05:55.100000 140 hooks.py:260] learning_rate = 0.001, loss = 2.125, step = 201 (9 sec)\n"
        "INFO:tensorflow:loss = 2."
    )
    run = run_of(tmp_path, text, "tensorflow_estimator")
    assert points(run, "loss") == [(1, 2.5), (101, 2.25), (201, 2.125)]
    assert points(run, "eval_loss") == [(101, 2.75)]
    assert points(run, "lr") == [(201, 0.001)]


def test_divergence_is_a_nan_after_the_last_step(tmp_path) -> None:
    text = (
        "> INFO:tensorflow:loss = 2.5, step = 100 (9 sec)\n"
        "> INFO:tensorflow:loss = 2.25, step = 200 (9 sec)\n"
        "> INFO:tensorflow:Saving checkpoints for 222 into /tmp/model.ckpt.\n"
        "> ERROR:tensorflow:Model diverged with loss = NaN.\n"
    )
    run = run_of(tmp_path, text, "tensorflow_estimator")
    assert points(run, "loss") == [(100, 2.5), (200, 2.25), (223, None)]
    assert [(event.kind, event.step) for event in run.events] == [(EventKind.NONFINITE, 223)]
    no_save = "".join(line for line in text.splitlines(keepends=True) if "Saving" not in line)
    assert points(run_of(tmp_path, no_save, "tensorflow_estimator"), "loss")[-1] == (201, None)


def test_recognition(tmp_path) -> None:
    text = "INFO:tensorflow:loss = 2.5, step = 100 (9 sec)\n" * 3
    assert first(tmp_path, text) == "tensorflow_estimator"
    assert (
        certainty(tmp_path, "max_step = 100\nloss = 2.5 at step 10\n", "tensorflow_estimator") == 0
    )


def test_slim_and_the_detection_api(tmp_path) -> None:
    text = "".join(
        f"INFO:tensorflow:global step {step}: loss = {loss} (0.273 sec/step)\n"
        f"I0422 07:10:04.984018 140 learning.py:507] global step {step}: loss = {loss} (0.2 s)\n"
        "INFO:tensorflow:global_step/sec: 0.98\n"
        for step, loss in ((408, "0.125"), (409, "25237.5"), (410, "nan"))
    )
    error = "INFO:tensorflow:Error reported to Coordinator: LossTensor is inf or nan. : Tensor\n"
    assert first(tmp_path, text) == "tensorflow_estimator"
    run = run_of(tmp_path, text + error, "tensorflow_estimator")
    assert points(run, "loss") == [(408, 0.125), (409, 25237.5), (410, None)]
    assert [(one.kind, one.signal) for one in run.events] == [(EventKind.NONFINITE, "loss")]
    error = "W op_kernel.cc:1273] Found Inf or NaN global norm. : Tensor had Inf values\n"
    run = run_of(tmp_path, text + error, "tensorflow_estimator")
    assert [one.signal for one in run.events] == ["grad_norm"]
