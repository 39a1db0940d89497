"""MLX: training, evaluation, and batches that a guard skipped."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, run_of


def test_rows(tmp_path) -> None:
    text = (
        "Iter 1: Val loss 2.875, Val took 5.125s\n"
        "Iter 10: Train loss 2.500, Learning Rate 1.000e-05, It/sec 0.512, Tokens/sec 190.225, "
        "Trained Tokens 3715, Peak mem 9.105 GB\n"
        "Iter 20: Train loss nan, Learning Rate 2.000e-05, It/sec 0.512, Tokens/sec 190.225, "
        "Trained Tokens 7430, Peak mem 9.105 GB\n"
        "Iter 20: Val loss 2.625, Val took 5.125s\n"
        "Iter 30: Train lo"
    )
    run = run_of(tmp_path, text, "mlx")
    assert points(run, "loss") == [(10, 2.5), (20, None)]
    assert points(run, "lr") == [(10, 1e-5), (20, 2e-5)]
    assert points(run, "eval_loss") == [(1, 2.875), (20, 2.625)]
    assert len(run.series) == 3


def test_a_skipped_batch(tmp_path) -> None:
    text = (
        "Iter 10: Train loss 1.5000, LR 4.500e-07, grad_norm 4.250,        skipped 0\n"
        "Iter 20: SKIPPED non-finite batch (loss 1.25, norm nan) -- weights untouched\n"
        "Iter 20: Train loss 1.2500, LR 1.950e-06, grad_norm 9999.250, skipped 1\n"
    )
    run = run_of(tmp_path, text, "mlx")
    assert points(run, "loss") == [(10, 1.5), (20, 1.25)]
    assert points(run, "grad_norm") == [(10, 4.25), (20, None)]
    assert points(run, "num_skipped") == [(10, 0.0), (20, 1.0)]
    assert [(event.kind, event.step) for event in run.events] == [(EventKind.SKIPPED, 20)]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, "Iter 10: Train loss 2.5, It/sec 0.5, Tokens/sec 190.2\n" * 3) == "mlx"
    assert certainty(tmp_path, "iter 10: loss 2.5, time 9ms\nIter 10: c_scores: 2\n", "mlx") == 0
