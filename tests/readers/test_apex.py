"""Overflows of apex where nothing else is understood."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, read, run_of

SAYS = "Gradient overflow.  Skipping step, loss scaler {} reducing loss scale to {}\n"


def test_scales_without_steps(tmp_path) -> None:
    text = "something\n" + SAYS.format(0, "32768.0") + "else\n" + SAYS.format(0, "16384.0")
    (run,) = read(tmp_path, text, "apex").runs
    assert run.series["loss_scale"].values.tolist() == [32768.0, 16384.0]
    assert [(event.kind, event.line) for event in run.events] == [
        (EventKind.OVERFLOW, 2),
        (EventKind.OVERFLOW, 4),
    ]


def test_scalers_are_kept_apart(tmp_path) -> None:
    run = run_of(
        tmp_path, SAYS.format(0, "32768.0") + SAYS.format(1, "64.0") + "Gradient ov", "apex"
    )
    assert run.series["loss_scale"].values.tolist() == [32768.0]
    assert run.series["loss_scale_2"].values.tolist() == [64.0]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, SAYS.format(0, "32768.0")) == "apex"
    assert certainty(tmp_path, "Gradient overflow is bad\n", "apex") == 0
