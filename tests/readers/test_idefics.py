"""The m4 trainer's lines, and its lines of validation."""

from tests.readers.reading import certainty, first, points, run_of

LOG = """\
iteration:   50/9000   0% | elapsed time: 00:10:02 | per_token_loss: 7.25 | lr: 1.000E-06 | \
num_tokens: 9000 | fwd_bwd_time: 600.5 | z_loss: 31.5 | grad_norm: 2.5 | \

iteration:  100/9000   1% | elapsed time: 00:20:02 | per_token_loss: nan | lr: 2.000E-06 | \
num_tokens: 18000 | z_loss: 30.0 | grad_norm: 2.25 |
** Starting validation **
Validation logs: val_per_token_loss: 7.00 | val_per_example_loss: 900.1 | val_num_images: 12 |
"""


def test_reads_training_and_validation(tmp_path) -> None:
    run = run_of(tmp_path, LOG, "idefics")
    assert points(run, "loss") == [(50, 7.25), (100, None)]
    assert points(run, "z_loss") == [(50, 31.5), (100, 30.0)]
    assert points(run, "grad_norm") == [(50, 2.5), (100, 2.25)]
    assert points(run, "eval_loss") == [(100, 7.0)]
    assert set(run.series) == {"loss", "lr", "z_loss", "grad_norm", "eval_loss"}
    assert run.total_steps == 9000


def test_a_value_without_its_end_is_not_taken_for_another(tmp_path) -> None:
    text = LOG + "iteration:  150/9000   1% | elapsed time: 00:30 | per_token_loss: 6.5 | lr: 3.0"
    run = run_of(tmp_path, text, "idefics")
    assert points(run, "loss")[-1] == (150, 6.5)


def test_is_recognised_and_megatron_is_not(tmp_path) -> None:
    assert first(tmp_path, LOG) == "idefics"
    text = " iteration       50/    9000 | lm loss: 7.2E+00 | grad norm: 1.0 |\n" * 3
    assert certainty(tmp_path, text, "idefics") == 0
