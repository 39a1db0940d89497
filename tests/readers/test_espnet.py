"""ESPnet2: means over stretches of batches, and updates that were skipped."""

from foreshock.core.log import EventKind
from tests.readers.reading import first, points, run_of

_HEAD = "[host] 2023-05-01 09:30:00,500 "


def _stretch(epoch: int, low: int, high: int, loss: str) -> str:
    return (
        f"{_HEAD}(trainer:763) INFO: {epoch}epoch:train:{low}-{high}batch: iter_time=1.1e-04, "
        f"forward_time=0.11, loss_ctc=80.25, loss_att=60.5, acc=0.21, loss={loss}, "
        "backward_time=0.12, optim0_lr0=1.485e-05, train_time=0.624\n"
    )


def test_steps_run_through_the_epochs(tmp_path) -> None:
    text = (
        _stretch(1, 1, 50, "65.5")
        + _stretch(1, 51, 100, "60.25")
        + f"{_HEAD}(trainer:345) INFO: 1epoch results: [train] loss_ctc=80.0, loss=62.5, "
        "[valid] loss_ctc=70.0, acc=0.5, loss=58.5, time=2 minutes\n" + _stretch(2, 1, 50, "nan")
    )
    run = run_of(tmp_path, text, "espnet")
    assert points(run, "loss") == [(50, 65.5), (100, 60.25), (150, None)]
    assert points(run, "eval_loss") == [(100, 58.5)]
    assert "train_time" not in run.series


def test_skipped_updates_are_events(tmp_path) -> None:
    warning = f"{_HEAD}(trainer:617) WARNING: The grad norm is nan. Skipping updating the model.\n"
    run = run_of(tmp_path, _stretch(1, 1, 50, "65.5") + 2 * warning, "espnet")
    assert [one.kind for one in run.events] == [EventKind.SKIPPED] * 2


def test_is_recognised(tmp_path) -> None:
    assert first(tmp_path, _stretch(1, 1, 50, "65.5") * 2) == "espnet"
