"""OpenMMLab's text: epochs counted through, both generations of the runner, validation."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, run_of

BY_EPOCH = """\
05/02 10:00:00 - mmengine - INFO - Epoch(train)   [1][ 50/120]  base_lr: 2.0e-04 lr: 1.0e-04  \
eta: 1 day, 0:10:00  time: 0.5  data_time: 0.01  memory: 900  loss: 2.5  grad_norm: 4.0
05/02 10:01:00 - mmengine - INFO - Epoch(train)   [1][100/120]  base_lr: 2.0e-04 lr: 1.0e-04  \
eta: 0:09:00  time: 0.5  data_time: 0.01  memory: 900  loss: 2.25  grad_norm: nan
05/02 10:02:00 - mmengine - INFO - Epoch(val)   [1][20/20]    coco/bbox_mAP: 0.125  data_time: 0.1
05/02 10:03:00 - mmengine - INFO - Epoch(train)   [2][ 50/120]  base_lr: 2.0e-04 lr: 1.0e-04  \
eta: 0:08:00  time: 0.5  data_time: 0.01  memory: 900  loss: 2.0  grad_norm: nan
"""
BY_STEP = """\
2024/05/02 10:00:00 - mmengine - INFO - Iter(train) [  100/40000]  lr: 1.0e-02  eta: 5:00:00  \
time: 0.5  memory: 900  loss: 1.5  decode.loss_ce: 1.0
2024/05/02 10:01:00 - mmengine - INFO - Iter(val) [50/50]    mIoU: 12.5  data_time: 0.1
"""
MMCV = """\
 Epoch [3][50/200]\tlr: 1.000e-03, eta: 6 days, 1:00:00, time: 0.5, memory: 7, loss: 1.75, \
grad_norm: nan
2022-05-02 10:00:00,500 - mmdet - INFO - Epoch [3][100/200]\tlr: 1.000e-03, eta: 5 days, \
2:00:00, time: 0.5, memory: 7, loss: 1.5, grad_norm: 3.5
2022-05-02 10:09:00,500 - mmdet - INFO - Epoch(val) [3][200]\tbbox_mAP: 0.25
"""


def test_counts_epochs_through_and_keeps_validation_apart(tmp_path) -> None:
    run = run_of(tmp_path, BY_EPOCH, "mmengine")
    assert points(run, "loss") == [(50, 2.5), (100, 2.25), (170, 2.0)]
    assert points(run, "grad_norm") == [(50, 4.0), (100, None), (170, None)]
    assert points(run, "eval_coco_bbox_map") == [(100, 0.125)]
    assert set(run.series) == {"loss", "grad_norm", "lr", "epoch", "eval_coco_bbox_map"}


def test_reads_runs_by_iteration(tmp_path) -> None:
    run = run_of(tmp_path, BY_STEP, "mmengine")
    assert points(run, "loss") == [(100, 1.5)]
    assert points(run, "eval_miou") == [(100, 12.5)]


def test_reads_the_older_runner_and_a_line_without_its_prefix(tmp_path) -> None:
    run = run_of(tmp_path, MMCV, "mmengine")
    assert points(run, "loss") == [(450, 1.75), (500, 1.5)]
    assert points(run, "grad_norm") == [(450, None), (500, 3.5)]
    assert points(run, "eval_bbox_map") == [(500, 0.25)]


def test_hears_of_a_resume_and_survives_a_cut_line(tmp_path) -> None:
    text = (
        BY_STEP
        + "2024/05/02 - mmengine - INFO - resumed epoch: 1, iter: 80\n"
        + (
            "05/02 10:00:00 - mmengine - INFO - Iter(train) [   90/40000]  lr: 1.0e-02  loss: 1.2\n"
            "05/02 10:00:00 - mmengine - INFO - Iter(train) [  190/40000]  lr: 1.0e-02  los"
        )
    )
    run = run_of(tmp_path, text, "mmengine")
    assert [one.kind for one in run.events] == [EventKind.RESUMED]
    assert run.restarts == ((100, 90),)
    assert run.series["loss"].steps.tolist() == [100, 90]


def test_is_recognised_and_its_neighbour_is_not(tmp_path) -> None:
    for text in (BY_EPOCH, BY_STEP, MMCV):
        assert first(tmp_path, text) == "mmengine"
    text = "Epoch: [0]  [ 10/139]  eta: 0:15:43  lr: 0.0001  loss: 4.3 (4.4)\n" * 3
    assert certainty(tmp_path, text, "mmengine") == 0


def test_a_value_pasted_in_bold(tmp_path) -> None:
    line = "2021-08-18 19:36:00,257 - mmdet - INFO - Epoch [1][50/90]\tlr: 1.000e-02, "
    text = line + "acc: 92.77**39, loss_bbox: nan, loss: nan**\n"
    assert points(run_of(tmp_path, text, "mmengine"), "loss") == [(50, None)]
