# ruff: noqa: E501 - lines of logs are as long as they are
"""MaxText: steps, evaluations, and the line before it gives up."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, run_of


def line(step: int, loss: str) -> str:
    return (
        f"I0811 21:54:55.100000 138304841739136 metric_logger.py:226] completed step: {step}, seconds: "
        f"0.631, TFLOP/s/device: 88.2, Tokens/s/device: 9629.5, total_weights: 9, loss: {loss}, "
        f"lm_loss: {loss}, perplexity: 43.2, moe_lb_loss: 0.5\n"
    )


def test_rows(tmp_path) -> None:
    text = (
        line(1, "9.500")
        + "Completed eval after train step 1, loss=9.250, perplexity=9.1, total_weights=9\n"
        + line(2, "nan")
        + "Aborting training due to NaN loss.\n"
        + line(3, "8.5")[:75]
    )
    run = run_of(tmp_path, text, "maxtext")
    assert points(run, "loss") == [(1, 9.5), (2, None)]
    assert points(run, "eval_loss") == [(1, 9.25)]
    assert points(run, "moe_lb_loss") == [(1, 0.5), (2, 0.5)]
    assert not {"seconds", "perplexity", "total_weights"} & set(run.series)
    assert [(event.kind, event.signal) for event in run.events] == [(EventKind.NONFINITE, "loss")]


def test_old_evaluations(tmp_path) -> None:
    text = line(1, "9.5") + "eval metrics after step: 1, loss=9.250, total_weights=9.0\n"
    assert points(run_of(tmp_path, text, "maxtext"), "eval_loss") == [(1, 9.25)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, line(1, "9.5") * 3) == "maxtext"
    assert certainty(tmp_path, "step: 5  loss: 9.5\nCompleted step: build\n", "maxtext") == 0
