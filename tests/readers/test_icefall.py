"""icefall: one batch in one bracket, the running mean in another."""

from tests.readers.reading import certainty, first, points, run_of

_LINE = (
    "{rank}Epoch {epoch}, batch {batch}, loss[loss={loss}, simple_loss=0.31, pruned_loss=0.25, "
    "over 2611.00 frames. ], tot_loss[loss={tot}, simple_loss=0.33, over 190000.50 frames. ], "
    "batch size: 61, lr: 2.20e-02, grad_scale: 32.0\n"
)
_HEAD = "2023-05-01 09:30:00,500 INFO [train.py:904] "


def _line(epoch: int, batch: int, loss: str, rank: str = "", tot: str = "3.5") -> str:
    return _HEAD + _LINE.format(rank=rank, epoch=epoch, batch=batch, loss=loss, tot=tot)


def test_batches_are_counted_through_the_epochs(tmp_path) -> None:
    text = "".join(
        _line(epoch, batch, loss)
        for epoch, batch, loss in ((1, 0, "7.5"), (1, 50, "3.25"), (2, 0, "nan"), (2, 50, "2.5"))
    )
    run = run_of(tmp_path, text, "icefall")
    assert points(run, "loss") == [(0, 7.5), (50, 3.25), (51, None), (101, 2.5)]
    assert set(run.series) >= {"loss", "simple_loss", "pruned_loss", "tot_loss", "lr", "loss_scale"}
    assert [value for _, value in points(run, "tot_loss")][-1] == 3.5


def test_the_loss_need_not_stand_first(tmp_path) -> None:
    text = (
        _HEAD + "Epoch 0, batch 500, loss[ctc_loss=0.75, loss=0.625, over 9 frames.], "
        "tot_loss[ctc_loss=1.0, att_loss=1.0, loss=1.0, over 90.5 frames.], batch size: 8\n"
    )
    run = run_of(tmp_path, text, "icefall")
    assert points(run, "loss") == [(500, 0.625)]
    assert points(run, "tot_loss") == [(500, 1.0)]


def test_validation_and_ranks(tmp_path) -> None:
    text = (
        _line(1, 50, "3.25", rank="(0/2) ")
        + _line(1, 50, "9.75", rank="(1/2) ")
        + _HEAD
        + "(0/2) Epoch 1, validation: loss=0.25, simple_loss=0.5, over 90.00 frames. \n"
    )
    run = run_of(tmp_path, text, "icefall")
    assert points(run, "loss") == [(50, 3.25)]
    assert [value for _, value in points(run, "eval_loss")] == [0.25]


def test_is_recognised_and_its_neighbour_is_not(tmp_path) -> None:
    assert first(tmp_path, _line(1, 50, "3.25") + _line(1, 100, "3.00")) == "icefall"
    assert certainty(tmp_path, "epoch: 1 step: 50, loss is 3.25\n" * 3, "icefall") == 0
    assert certainty(tmp_path, _line(1, 50, "3.25") * 3, "mindspore") == 0
