# ruff: noqa: E501 - lines of logs are as long as they are
"""fairseq's three syntaxes; averages of an epoch stay apart from the steps."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, read, run_of

_INFO = "2020-05-01 09:30:00 | INFO | "


def inner(updates: int, loss: str, scale: str = "64") -> str:
    return (
        f"{_INFO}train_inner | epoch 003:   {updates:4d} / 900 loss={loss}, nll_loss=8.5, "
        f"ppl=347.28, wps=306, ups=0.07, wpb=427, bsz=143.4, num_updates={updates}, lr=0.0001, "
        f"gnorm=1.5, loss_scale={scale}, train_wall=12, wall=98\n"
    )


def epoch(updates: int, loss: str) -> str:
    return (
        f"{_INFO}train | epoch 003 | loss {loss} | ppl 3.2 | wps 312 | num_updates {updates} | "
        "lr 0.0002 | gnorm 2.5 | loss_scale 32 | train_wall 45 | wall 97\n"
    )


def valid(updates: int, loss: str) -> str:
    return (
        f"{_INFO}valid | epoch 003 | valid on 'valid' subset | loss {loss} | ppl 321.2 | wps 8 | "
        f"num_updates {updates} | best_loss 2.0\n"
    )


def test_steps_epochs_and_validations_are_three_things(tmp_path) -> None:
    text = (
        inner(10, "5.5") + inner(20, "nan") + epoch(20, "7.5") + valid(20, "6.5") + inner(30, "5")
    )
    run = run_of(tmp_path, text, "fairseq")
    assert points(run, "loss") == [(10, 5.5), (20, None), (30, 5.0)]
    assert points(run, "epoch_loss") == [(20, 7.5)]
    assert points(run, "eval_loss") == [(20, 6.5)]
    assert points(run, "grad_norm") == [(10, 1.5), (20, 1.5), (30, 1.5)]
    assert not {"wps", "ppl", "eval_best_loss", "epoch_wall"} & set(run.series)


def test_a_log_of_epochs_alone_is_read_as_it_is(tmp_path) -> None:
    line = "| epoch 02{} | loss {} | num_updates {}00 | lr 0.0003 | gnorm 0.5 | loss_scale 8 | wall 4\n"
    run = run_of(tmp_path, line.format(1, "3.5", 1) + line.format(2, "3.25", 2), "fairseq")
    assert points(run, "loss") == [(100, 3.5), (200, 3.25)]
    assert points(run, "grad_norm") == [(100, 0.5), (200, 0.5)]
    assert points(run, "loss_scale") == [(100, 8.0), (200, 8.0)]


def test_json(tmp_path) -> None:
    text = (
        _INFO + 'train_inner | {"epoch": 1, "update": 0.05, "loss": "9.5", "ppl": "7", "num_updates": '
        '"50", "lr": "0.0001", "gnorm": "2.5", "loss_scale": "64", "wall": "9"}\n'
        + _INFO + 'train | {"epoch": 1, "train_loss": "9.75", "train_num_updates": "60", "train_lr": "1"}\n'
        + _INFO + 'valid | {"epoch": 1, "valid_loss": "9.25", "valid_num_updates": "60"}\n'
    )  # fmt: skip
    run = run_of(tmp_path, text, "fairseq")
    assert points(run, "loss") == [(50, 9.5)]
    assert points(run, "grad_norm") == [(50, 2.5)]
    assert points(run, "epoch_loss") == [(60, 9.75)]
    assert points(run, "eval_loss") == [(60, 9.25)]


def test_a_scale_of_zero_is_one_below_the_print(tmp_path) -> None:
    text = inner(10, "5.5", "0") + (
        f"{_INFO}fairseq.trainer | NOTE: overflow detected, setting loss scale to: 0.00048828125\n"
        f"{_INFO}fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss "
        "scale to: 0.000244140625\n"
        "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.\n"
    )
    log = read(tmp_path, text, "fairseq")
    (run,) = log.runs
    assert run.series["loss_scale"].values.tolist() == [0.0, 2.0**-11, 2.0**-12]
    assert [event.kind for event in run.events] == [
        EventKind.OVERFLOW,
        EventKind.OVERFLOW,
        EventKind.SCALE_FLOOR,
    ]
    assert any("printed as 0" in note for note in log.notes)


def test_a_truncated_last_line(tmp_path) -> None:
    text = inner(10, "5.5") + inner(20, "5.25")[:150]
    assert points(run_of(tmp_path, text, "fairseq"), "loss") == [(10, 5.5)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, inner(10, "5.5") + epoch(20, "5") + valid(20, "6")) == "fairseq"
    assert certainty(tmp_path, "epoch 1 | loss 2.5 | lr 0.1\n" * 3, "fairseq") == 0


def test_overflows_before_the_first_record_of_a_second_training_are_its_own(tmp_path) -> None:
    overflow = "2024-07-03 15:00:05 | INFO | fairseq.trainer | NOTE: gradient overflow detected, " \
        "ignoring gradient, setting loss scale to: {}\n"  # fmt: skip
    record = (
        "2024-07-03 15:20:00 | INFO | train_inner | epoch 001:  {0} / 900 loss={1}, "
        "num_updates={0}, lr=1e-05, gnorm=1.5, loss_scale={2}, train_wall=9\n"
    )
    text = record.format(200, 9.5, 64) + record.format(400, 8.5, 64)
    text += "2024-07-03 16:20:00 | INFO | fairseq_cli.train | done training in 4321.0 seconds\n"
    text += overflow.format(32.0) + overflow.format(16.0)
    text += record.format(200, 7.5, 16) + record.format(400, 6.5, 16)
    one, two = read(tmp_path, text, "fairseq").runs
    assert [value for _, value in points(one, "loss_scale")] == [64, 64]
    assert [value for _, value in points(two, "loss_scale")] == [32, 16, 16, 16]
