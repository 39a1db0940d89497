"""PaddlePaddle's suites: a form each, and evaluation apart from training."""

import pytest

from tests.readers.reading import certainty, first, points, run_of

DETECTION = """\
[05/14 12:00:00] ppdet.engine INFO: Epoch: [0] [ 0/60] learning_rate: 0.001 loss_cls: 1.5 \
loss: 3.5 eta: 12:23:45 batch_cost: 0.5 data_cost: 0.0003 ips: 16.0 images/s
[05/14 12:01:00] ppdet.engine INFO: Epoch: [1] [20/60] learning_rate: 0.002 loss_cls: nan \
loss: nan eta: 1 day, 1:23:45 batch_cost: 0.5 data_cost: 0.0003 ips: 16.0 images/s
"""
OCR = """\
[2022/05/02 10:00:00] ppocr INFO: epoch: [1/90], global_step: 10, lr: 0.0001, acc: 0.25, loss: \
2.5, avg_reader_cost: 0.1 s, avg_batch_cost: 0.2 s, avg_samples: 64.0, ips: 99.0 samples/s
[2022/05/02 10:01:00] ppocr INFO: cur metric, acc: 0.5, norm_edit_dis: 0.75, fps: 900.5
[2022/05/02 10:02:00] ppocr INFO: epoch: [1/90], global_step: 20, lr: 0.0002, acc: 0.5, loss: \
2.25, avg_reader_cost: 0.1 s, avg_batch_cost: 0.2 s, avg_samples: 64.0, ips: 99.0 samples/s
"""
CLAS = """\
[2022/05/02 10:00:00] ppcls INFO: [Train][Epoch 2/90][Iter: 5/20]lr: 0.1, top1: 0.125, CELoss: \
4.5, loss: 4.5, batch_cost: 0.5s, reader_cost: 0.1, ips: 60.1 images/sec, eta: 0:00:30
[2022/05/02 10:01:00] ppcls INFO: [Train][Epoch 2/90][Avg]top1: 0.2, CELoss: 4.4, loss: 4.4
[2022/05/02 10:02:00] ppcls INFO: [Eval][Epoch 2][Avg]CELoss: 4.0, loss: 4.0, top1: 0.25
"""
SEG = """\
2022-05-02 10:00:00 [INFO]\t[TRAIN] epoch: 1, iter: 10/900, loss: 1.25, lr: 0.01, batch_cost: \
0.1, reader_cost: 0.01, ips: 9.5 samples/sec | ETA 00:10:00
2022-05-02 10:01:00 [INFO]\t[EVAL] #Images: 76 mIoU: 0.5 Acc: 0.875 Kappa: 0.25
"""
NLP = """\
[2021-05-02 10:00:00,500] [    INFO] - global step 10, epoch: 0, batch: 9, loss: 1.5, speed: 3.5 \
step/s
[2021-05-02 10:01:00,500] [    INFO] - global step 20, epoch: 0, batch: 19, loss: 1.25, speed: 3.5 \
step/s
"""
TRAINER = """\
[2024-05-02 10:00:00,500] [    INFO] - loss: 9.5, learning_rate: 2e-06, global_step: 1, \
current_memory_allocated: 7.5, interval_runtime: 1.1, interval_steps_per_second: 0.9, loss_scale: \
32768.0, progress_or_epoch: 0.25
[2024-05-02 10:01:00,500] [    INFO] - loss: 9.25, learning_rate: 3e-06, global_step: 2, \
current_memory_allocated: 7.5, interval_runtime: 1.1, interval_steps_per_second: 0.9, loss_scale: \
32768.0, progress_or_epoch: 0.5
[2024-05-02 10:02:00,500] [    INFO] - eval_loss: 9.0, eval_accuracy: 0.5, eval_runtime: 1.5, \
epoch: 0.5
"""


def test_detection_counts_epochs_through(tmp_path) -> None:
    run = run_of(tmp_path, DETECTION, "paddle")
    assert points(run, "loss") == [(0, 3.5), (80, None)]
    assert points(run, "lr") == [(0, 0.001), (80, 0.002)]
    assert set(run.series) == {"loss", "loss_cls", "lr", "epoch"}


def test_ocr_keeps_evaluation_apart(tmp_path) -> None:
    run = run_of(tmp_path, OCR, "paddle")
    assert points(run, "loss") == [(10, 2.5), (20, 2.25)]
    assert points(run, "acc") == [(10, 0.25), (20, 0.5)]
    assert points(run, "eval_acc") == [(10, 0.5)]
    assert "ips" not in run.series


def test_classification_leaves_out_the_mean_of_the_epoch(tmp_path) -> None:
    run = run_of(tmp_path, CLAS, "paddle")
    assert points(run, "loss") == [(25, 4.5)]
    assert points(run, "eval_loss") == [(25, 4.0)]


def test_segmentation(tmp_path) -> None:
    run = run_of(tmp_path, SEG, "paddle")
    assert points(run, "loss") == [(10, 1.25)]
    assert points(run, "eval_miou") == [(10, 0.5)]
    assert run.total_steps == 900


def test_language_scripts_and_trainer(tmp_path) -> None:
    assert points(run_of(tmp_path, NLP, "paddle"), "loss") == [(10, 1.5), (20, 1.25)]
    run = run_of(tmp_path, TRAINER, "paddle")
    assert points(run, "loss") == [(1, 9.5), (2, 9.25)]
    assert points(run, "epoch") == [(1, 0.25), (2, 0.5)]
    assert points(run, "loss_scale") == [(1, 32768.0), (2, 32768.0)]
    assert points(run, "eval_loss") == [(2, 9.0)]
    assert not [name for name in run.series if "memory" in name or "interval" in name]


def test_a_cut_line_gives_no_false_value(tmp_path) -> None:
    text = DETECTION + "[05/14 12:02:00] ppdet.engine INFO: Epoch: [1] [40/60] learning_rate: 0.0"
    assert points(run_of(tmp_path, text, "paddle"), "loss")[-1] == (80, None)


@pytest.mark.parametrize("text", [DETECTION, OCR, CLAS, SEG, NLP, TRAINER])
def test_is_recognised(tmp_path, text) -> None:
    assert first(tmp_path, text) == "paddle"


def test_its_neighbours_are_not(tmp_path) -> None:
    text = "Epoch: [0]  [ 10/139]  eta: 0:15:43  lr: 0.0001  loss: 4.3 (4.4)\n" * 3
    assert certainty(tmp_path, text, "paddle") == 0
    assert certainty(tmp_path, "Step [10/100], Loss: 1.2\n" * 3, "paddle") == 0


def test_nan_is_filled_up_with_an_x_or_stands_in_quotes(tmp_path) -> None:
    text = "".join(
        f"[2023/10/09 10:49:12] ppocr INFO: epoch: [9/20], global_step: {step}, lr: 0.000516, "
        f"CTCLoss: {loss}, loss: {loss}, avg_samples: 128.0, ips: 423.97 samples/s\n"
        for step, loss in ((10, "2.500000"), (20, "nanxxx"), (30, "infxxx"))
    )
    run = run_of(tmp_path, text, "paddle")
    assert points(run, "loss") == [(10, 2.5), (20, None), (30, float("inf"))]
    text = "2021-05-14 11:36:51,758-INFO: epoch: 0, iter: 2, lr: 0.01, 'loss': nan, time: 2.3\n"
    assert points(run_of(tmp_path, text, "paddle"), "loss") == [(2, None)]
