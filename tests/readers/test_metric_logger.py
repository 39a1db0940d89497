"""MetricLogger's text: the window's value in training, the mean of a test pass."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, run_of

LOG = """\
Epoch: [0]  [  0/40]  eta: 0:29:27  lr: 0.000100  loss: 5.50 (5.50)  loss_iou: 5.00 (5.00)  \
time: 12.7  data: 2.6
Epoch: [0]  [ 20/40]  eta: 0:09:27  lr: 0.000100  loss: 4.50 (5.00)  loss_iou: 4.00 (4.50)  \
time: 12.7  data: 2.6  max mem: 1234
Epoch: [0] Total time: 0:15:07 (6.5266 s / it)
Test:  [ 0/16]  eta: 0:28:34  loss: 8.00 (8.00)  time: 10.5  data: 3.7
Test:  [10/16]  eta: 0:08:34  loss: 6.50 (7.00)  time: 10.5  data: 3.7
Test:  [15/16]  eta: 0:00:34  loss: 6.00 (6.75)  time: 10.5  data: 3.7
Averaged stats: loss: 6.00 (6.75)
Epoch: [1]  [  0/40]  eta: 0:29:27  lr: 0.000100  loss: 4.00 (4.00)  time: 12.7  data: 2.6
Loss is nan, stopping training
"""


def test_training_and_test_rows_are_not_mixed(tmp_path) -> None:
    run = run_of(tmp_path, LOG, "metric_logger")
    assert points(run, "loss") == [(0, 5.5), (20, 4.5), (40, 4.0)]
    assert points(run, "loss_iou") == [(0, 5.0), (20, 4.0)]
    assert points(run, "eval_loss") == [(20, 6.75)]
    assert points(run, "epoch") == [(0, 0.0), (20, 0.0), (40, 1.0)]
    assert set(run.series) == {"loss", "loss_iou", "lr", "eval_loss", "epoch"}
    assert [(one.kind, one.step) for one in run.events] == [(EventKind.NONFINITE, 40)]


def test_a_test_pass_at_the_end_and_a_cut_line(tmp_path) -> None:
    text = "".join(LOG.splitlines(keepends=True)[:6]) + "Epoch: [1]  [  0/40]  eta: 0:2"
    assert points(run_of(tmp_path, text, "metric_logger"), "eval_loss") == [(20, 6.75)]


def test_is_recognised_and_its_neighbour_is_not(tmp_path) -> None:
    assert first(tmp_path, LOG) == "metric_logger"
    text = "ppdet INFO: Epoch: [0] [ 20/90] learning_rate: 0.1 loss: 3.2 eta: 1:23:45\n" * 3
    assert certainty(tmp_path, text, "metric_logger") == 0
