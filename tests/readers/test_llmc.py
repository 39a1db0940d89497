"""llm.c: the z-scores are no values, and validation lines bear no step."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, run_of


def line(step: int, loss: str, norm: str, score: str = "+nan") -> str:
    return (
        f"step {step:4d}/900 | loss {loss} ({score}z)| norm {norm} ({score}z)| lr 8.57e-07 | "
        "90.25 ms | 29.2% bf16 MFU | 113446 tok/s\n"
    )


def test_scores_that_are_not_there_yet_are_no_nan(tmp_path) -> None:
    text = (
        "| val_loss_every        | 250      |\n"
        "val loss 9.625000\n"
        + line(1, "9.500000", "15.5000")
        + line(2, "9.250000", " 1.5000", "-1.24")
        + "val loss 9.125000\n"
        + line(3, "    nan", "   nan", "+nan")
        + line(4, "9.1", "1.2")[:20]
    )
    run = run_of(tmp_path, text, "llmc")
    assert points(run, "loss") == [(1, 9.5), (2, 9.25), (3, None)]
    assert points(run, "grad_norm") == [(1, 15.5), (2, 1.5), (3, None)]
    assert points(run, "eval_loss") == [(1, 9.625), (2, 9.125)]
    assert points(run, "lr") == [(1, 8.57e-7), (2, 8.57e-7), (3, 8.57e-7)]
    assert run.total_steps == 900
    assert len(run.series) == 4


def test_a_skipped_update(tmp_path) -> None:
    text = (
        line(1, "9.5", "15.5")
        + "skipping update due to loss z-score of 6.5\n"
        + line(2, "9.5", "1.5")
    )
    assert [event.kind for event in run_of(tmp_path, text, "llmc").events] == [EventKind.SKIPPED]


def test_other_versions(tmp_path) -> None:
    text = (
        "step    1/10 | train loss 4.500000 | norm 15.5000 | lr 1.00e-04 | (90.25 ms | 900 tok/s)\n"
        "step    2/10: train loss 4.250000 (90.250000 ms, 900 tok/s)\n"
    )
    run = run_of(tmp_path, text, "llmc")
    assert points(run, "loss") == [(1, 4.5), (2, 4.25)]
    assert points(run, "grad_norm") == [(1, 15.5)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, line(1, "9.5", "15.5") * 3) == "llmc"
    assert certainty(tmp_path, "step     0 | loss: 9.5 | norm: 15.5\nstep 3: loss 9\n", "llmc") == 0
