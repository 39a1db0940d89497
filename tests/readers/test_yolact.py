"""YOLACT's letters: T is the loss."""

from tests.readers.reading import certainty, first, points, run_of


def line(step: int, total: str) -> str:
    return (
        f"[  1] {step:7d} || B: 5.000 | C: 3.500 | M: 6.000 | S: 1.500 | T: {total} || "
        "ETA: 9 days, 1:02:11 || timer: 0.298\n"
    )


def test_total_and_parts(tmp_path) -> None:
    says = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1.5e-05\n"
    run = run_of(
        tmp_path, line(10, "16.000") + says + line(20, "nan") + "[  1]      30 || B: 5.", "yolact"
    )
    assert points(run, "loss") == [(10, 16.0), (20, None)]
    assert points(run, "box_part")[:2] == [(10, 5.0), (20, 5.0)]
    assert points(run, "loss_scale") == [(10, 1.5e-5)]
    assert "timer" not in run.series


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, line(10, "16.0") * 3) == "yolact"
    assert certainty(tmp_path, "[1] 10 || loss: 5.0 || lr: 0.1\n" * 3, "yolact") == 0
