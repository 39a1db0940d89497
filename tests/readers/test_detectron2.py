"""detectron2's console and log file, old and new."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, run_of

OLD = """\
[03/05 10:00:00 d2.engine.train_loop]: Starting training from iteration 0
[03/05 10:00:09 d2.utils.events]: eta: 1 day, 5:41:00  iter: 19  total_loss: 2.5  \
loss_cls: 1.5  loss_box_reg: 1.0  time: 0.2293  data_time: 0.0033  lr: 0.0002  max_mem: 3782M
[03/05 10:00:19 d2.utils.events]: eta: 0:41:00  iter: 39  total_loss: nan  \
loss_cls: nan  loss_box_reg: 1.0  time: 0.2293  data_time: 0.0033  lr: 0.0004  max_mem: 3782M
"""
NEW = """\
[03/05 10:00:09] d2.utils.events INFO:  eta: 0:41:00  iter: 19  total_loss: 2.5  loss_cls: 1.5  \
loss_box_reg: 1.0    time: 0.2293  last_time: 0.2100  data_time: 0.0033  last_data_time: 0.002   \
lr: 0.0002  max_mem: 3782M
[03/05 10:00:19] d2.utils.events INFO:  iter: 39  total_loss: 2.25  loss_cls: 1.25  \
loss_box_reg: 1.0    time: 0.2293  last_time: 0.2100   lr: 0.0004  max_mem: 3782M
"""


def test_reads_the_console(tmp_path) -> None:
    run = run_of(tmp_path, OLD, "detectron2")
    assert points(run, "loss") == [(19, 2.5), (39, None)]
    assert points(run, "lr") == [(19, 0.0002), (39, 0.0004)]
    assert set(run.series) == {"loss", "loss_cls", "loss_box_reg", "lr"}
    assert run.events == ()


def test_reads_newer_log_files(tmp_path) -> None:
    run = run_of(tmp_path, NEW, "detectron2")
    assert points(run, "loss") == [(19, 2.5), (39, 2.25)]
    assert set(run.series) == {"loss", "loss_cls", "loss_box_reg", "lr"}


def test_hears_of_a_resume_and_of_a_nan(tmp_path) -> None:
    text = (
        OLD
        + "[03/05 11:00:00 d2.engine.train_loop]: Starting training from iteration 20\n"
        + OLD.splitlines()[2].replace("nan", "2.0")
        + "\nFloatingPointError: Loss became infinite or NaN at iteration=41!\n"
        + "[03/05 11:00:19 d2.utils.events]: eta: 0:41:00  iter: 59  total_l"
    )
    run = run_of(tmp_path, text, "detectron2")
    assert [one.kind for one in run.events] == [EventKind.RESUMED, EventKind.NONFINITE]
    assert run.series["loss"].attempts.tolist() == [0, 0, 1]


def test_is_recognised_and_its_neighbour_is_not(tmp_path) -> None:
    assert first(tmp_path, OLD) == "detectron2"
    assert first(tmp_path, NEW) == "detectron2"
    text = "2020-05-10 08:34:41 maskrcnn_benchmark INFO: eta: 1:00:00  iter: 20  loss: 1 (1)\n"
    assert certainty(tmp_path, text * 3, "detectron2") == 0
