# ruff: noqa: E501 - lines of logs are as long as they are
"""maskrcnn_benchmark's meters: the last values' median, not the run's average."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, run_of


def line(step: int, loss: str, average: str) -> str:
    return (
        f"2019-05-01 09:30:00,100 maskrcnn_benchmark.trainer INFO: eta: 1 day, 1:02:11  iter: {step}  "
        f"loss: {loss} ({average})  loss_rpn: 0.5000 (0.4000)  time: 1.6 (1.5)  data: 0.01 (0.02)  "
        "lr: 0.020000  max mem: 4000\n"
    )


def test_the_value_is_read_and_not_the_average(tmp_path) -> None:
    text = line(20, "2.5000", "2.6000") + line(40, "nan", "nan") + line(60, "2.2500", "nan")
    run = run_of(tmp_path, text, "maskrcnn")
    assert points(run, "loss") == [(20, 2.5), (40, None), (60, 2.25)]
    assert points(run, "lr") == [(20, 0.02), (40, 0.02), (60, 0.02)]
    assert set(run.series) == {"loss", "loss_rpn", "lr"}


def test_the_scale_falls_to_zero(tmp_path) -> None:
    says = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}\n"
    run = run_of(
        tmp_path, line(20, "2.5", "2.5") + says.format("5e-324") + says.format("0.0"), "maskrcnn"
    )
    assert run.series["loss_scale"].values.tolist() == [5e-324, 0.0]
    assert [event.kind for event in run.events] == [EventKind.OVERFLOW] * 2


def test_a_truncated_last_line(tmp_path) -> None:
    text = line(20, "2.5", "2.5") + line(40, "2.25", "2.4")[:95]
    assert points(run_of(tmp_path, text, "maskrcnn"), "loss") == [(20, 2.5)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, line(20, "2.5", "2.6") * 3) == "maskrcnn"
    detectron2 = (
        "[05/01 09:30:00 d2.utils.events]: eta: 1:02:11  iter: 19  total_loss: 2.5  lr: 0.1\n"
    )
    assert certainty(tmp_path, detectron2 * 3, "maskrcnn") == 0
