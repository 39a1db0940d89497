"""MindSpore: monitors old and new, overflow that is updated with, sinks of one row an epoch."""

import pytest

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, read, run_of

MONITOR = """\
epoch: 1 step: 10, loss is 2.5
epoch: 1 step: 20, loss is 2.25
Train epoch time: 1234.5 ms, per step time: 12.3 ms
epoch: 2 step: 10, loss is nan
epoch: 2 step: 20, loss is 2.0
"""
FORMERS = """\
2025-05-02 10:00:00,308 - [mindformers/core/callback/callback.py:529] - INFO - { Epoch:[  1/  2], \
step:[    5/   20], loss: 9.5, per_step_time: 1752ms, lr: 1e-05, overflow cond: False, loss_scale: \
65536.0, global_norm: [1.25], train_throughput_per_npu: 170.738T
2025-05-02 10:00:00,309 - [mindformers/core/callback/callback.py:529] - INFO -    2.5% |█   | 0.1 \
samples/s/p  9:00:00 }
2025-05-02 10:00:02,308 - [mindformers/core/callback/callback.py:529] - INFO - { Epoch:[  2/  2], \
step:[    5/   20], loss: 9.25, per_step_time: 1752ms, lr: 2e-05, overflow cond: True, loss_scale: \
32768.0, global_norm: [nan], train_throughput_per_npu: 170.738T
"""
OLD_FORMERS = """\
[INFO] 2023-05-02 [callback.py:269] print_output_info: Epoch:[  1/  1], step:[    4/  125], \
loss:[2.250/2.500], time:507.205 ms, lr:[1.5e-05], overflow cond: False, loss_scale: 268435460.0
"""
YOLO = """\
2024-05-02 09:58:34,125 [WARNING] overflow, still update, loss scale adjust to 1024.0
2024-05-02 09:58:42,787 [INFO] Epoch 1/9, Step 10/40, imgsize (640, 640), loss: 11.5, lbox: 3.5, \
lcls: 8.0, cur_lr: 0.05
2024-05-02 09:58:42,800 [INFO] Epoch 1/9, Step 10/40, step time: 5736.71 ms
2024-05-02 09:59:34,125 [WARNING] overflow, drop step, loss scale adjust to 512.0
2024-05-02 09:59:42,787 [INFO] Epoch 2/9, Step 10/40, imgsize (640, 640), loss: nan, lbox: nan, \
lcls: nan, cur_lr: 0.04
"""


def test_the_monitor_counts_epochs_through(tmp_path) -> None:
    run = run_of(tmp_path, MONITOR, "mindspore")
    assert points(run, "loss") == [(10, 2.5), (20, 2.25), (30, None), (40, 2.0)]
    assert points(run, "epoch") == [(10, 1), (20, 1), (30, 2), (40, 2)]


def test_one_row_an_epoch(tmp_path) -> None:
    text = "".join(f"epoch: {n} step: 250, loss is {4 - n}\n" for n in (1, 2, 3))
    assert points(run_of(tmp_path, text, "mindspore"), "loss") == [(250, 3), (500, 2), (750, 1)]


def test_formers_old_and_new(tmp_path) -> None:
    run = run_of(tmp_path, FORMERS, "mindspore")
    assert points(run, "loss") == [(5, 9.5), (25, 9.25)]
    assert points(run, "grad_norm") == [(5, 1.25), (25, None)]
    assert points(run, "loss_scale") == [(5, 65536.0), (25, 32768.0)]
    assert [(one.kind, one.step) for one in run.events] == [(EventKind.OVERFLOW, 25)]
    assert set(run.series) == {"loss", "grad_norm", "loss_scale", "lr", "epoch"}
    run = run_of(tmp_path, OLD_FORMERS, "mindspore")
    assert points(run, "loss") == [(4, 2.25)]
    assert points(run, "lr") == [(4, 1.5e-5)]


def test_an_overflow_that_is_updated_with(tmp_path) -> None:
    log = read(tmp_path, YOLO, "mindspore")
    run = log.runs[0]
    assert points(run, "loss") == [(10, 11.5), (50, None)]
    assert points(run, "lr") == [(10, 0.05), (50, 0.04)]
    assert [one.kind for one in run.events] == [EventKind.OVERFLOW, EventKind.OVERFLOW]
    assert "still update" in run.events[0].text
    assert run.series["loss_scale"].values.tolist() == [1024.0, 512.0]
    assert log.facts["overflowed_steps"] == "updated all the same"


def test_a_restart_goes_back(tmp_path) -> None:
    again = "epoch: 2 step: 10, loss is 2.125\nepoch: 2 step: 20, loss is 1.75\n"
    run = run_of(tmp_path, MONITOR + again, "mindspore")
    assert run.series["loss"].steps.tolist() == [10, 20, 30, 40, 30, 40]
    assert run.restarts == ((40, 30),)


def test_a_cut_line_is_skipped(tmp_path) -> None:
    run = run_of(tmp_path, MONITOR + "epoch: 3 step: 10, loss is ", "mindspore")
    assert len(run.series["loss"]) == 4


@pytest.mark.parametrize("text", [MONITOR, FORMERS, OLD_FORMERS, YOLO])
def test_is_recognised(tmp_path, text) -> None:
    assert first(tmp_path, text) == "mindspore"


def test_its_neighbour_is_not(tmp_path) -> None:
    text = "Epoch: [0]  [ 10/139]  eta: 0:15:43  lr: 0.0001  loss: 4.3 (4.4)\n" * 3
    assert certainty(tmp_path, text, "mindspore") == 0
