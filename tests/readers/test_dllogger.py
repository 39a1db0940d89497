"""DLLogger, as text and as JSON."""

import json

from tests.readers.reading import certainty, first, points, run_of

_TIME = "DLL 2020-05-01 09:30:00.100000 - "


def test_text(tmp_path) -> None:
    text = (
        f"{_TIME}PARAMETER loss : 99.0 batch : 8 \n"
        f"{_TIME}Training Epoch: 0 Training Iteration: 10  average_loss : 2.5  step_loss : 3.5  "
        "learning_rate : 0.005 \n"
        f"{_TIME}PARAMETER checkpoint_step : 10 \n"
        f"{_TIME}Training Epoch: 0 Training Iteration: 20  average_loss : 2.25  step_loss : nan  "
        "learning_rate : 0.004 \n"
        f"{_TIME}Training Epoch: 0 Training Iter"
    )
    run = run_of(tmp_path, text, "dllogger")
    assert points(run, "loss") == [(10, 3.5), (20, None)]
    assert points(run, "average_loss") == [(10, 2.5), (20, 2.25)]
    assert points(run, "lr") == [(10, 0.005), (20, 0.004)]
    assert set(run.series) == {"loss", "average_loss", "lr"}


def test_steps_as_tuples_and_validations(tmp_path) -> None:
    text = (
        f"{_TIME}(0, 5) train_loss : 2.5 train_ips : 545.2 img/s\n"
        f"{_TIME}Epoch: 0 Iteration: 6 Validation Iteration: 0  loss : 9.5 nat\n"
        f"{_TIME}(0, 7) train_loss : 2.25 train_ips : 545.2 img/s\n"
    )
    run = run_of(tmp_path, text, "dllogger")
    assert points(run, "loss") == [(5, 2.5), (7, 2.25)]
    assert points(run, "eval_loss") == [(6, 9.5)]
    assert "train_ips" not in run.series


def line(step, kind="LOG", **data) -> str:
    given = {"timestamp": "1.5", "datetime": "x", "type": kind, "step": step, "data": data}
    return f"DLLL {json.dumps(given)}\n"


def test_json_keeps_sums_of_an_epoch_apart(tmp_path) -> None:
    text = (
        line("PARAMETER", loss=99.0)
        + line([0, 5], **{"train.loss": 2.5, "train.total_ips": 545.2, "train.name": "x"})
        + line([0, 10], **{"train.loss": float("nan")})
        + line([0], **{"train.loss": 7.5, "val.loss": 3.5})
        + line([], final=1.0, kind="METADATA")
        + "DLLL {broken\n"
        + 'DLLL {"timestamp": ' + "[" * 100_000 + "\n"
        + line([1, 15], **{"train.loss": 2.25})
    )  # fmt: skip
    run = run_of(tmp_path, text, "dllogger")
    assert points(run, "loss") == [(5, 2.5), (10, None), (15, 2.25)]
    assert points(run, "epoch_loss") == [(10, 7.5)]
    assert points(run, "eval_loss") == [(10, 3.5)]
    assert not {"train_total_ips", "final"} & set(run.series)


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, line([0, 5], loss=2.5) * 3) == "dllogger"
    assert (
        certainty(tmp_path, '{"type": "LOG", "step": 5, "data": {"loss": 2.5}}\n', "dllogger") == 0
    )
