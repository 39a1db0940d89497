"""verl's console: units in labels, NumPy values, validation on lines of its own."""

import pytest

from tests.readers.reading import certainty, first, points, read, run_of

LOG = """\
Epoch 1/2:  50%|█████     | 1/2 [00:03<00:03,  3.1s/it]
step:1 - train/loss:0.75 - train/lr(1e-3):0.02 - train/time(s):6.3
step:2 - train/loss:nan - train/lr(1e-3):0.04 - train/time(s):5.1
step:2 - val/loss:0.81
Final validation metrics: {'val/loss': 0.81}
"""
RL = """\
(TaskRunner pid=77) step:4 - global_seqlen/mean:901.5 - actor/pg_loss:np.float64(-0.02) - \
actor/grad_norm:0.31 - critic/vf_loss:0.5 - actor/lr:1e-06 - timing_s/step:33.0 - perf/mfu:0.3
"""


def test_reads_steps_and_scales_by_the_unit(tmp_path) -> None:
    run = run_of(tmp_path, LOG, "verl")
    assert points(run, "loss") == [(1, 0.75), (2, None)]
    assert points(run, "lr") == [(1, pytest.approx(2e-5)), (2, pytest.approx(4e-5))]
    assert points(run, "eval_loss") == [(2, 0.81)]
    assert set(run.series) == {"loss", "lr", "eval_loss"}


def test_reads_rows_of_reinforcement_learning(tmp_path) -> None:
    run = run_of(tmp_path, RL, "verl")
    assert points(run, "loss") == [(4, -0.02)]
    assert points(run, "grad_norm") == [(4, 0.31)]
    assert points(run, "lr") == [(4, 1e-6)]
    assert set(run.series) == {"loss", "grad_norm", "lr", "critic_vf_loss"}


def test_a_line_cut_off_in_a_label_keeps_what_is_whole(tmp_path) -> None:
    log = read(tmp_path, LOG + "step:3 - train/loss:0.5 - train/lr(1e", "verl")
    assert points(log.runs[0], "loss")[-1] == (3, 0.5)


def test_is_recognised_and_its_neighbour_is_not(tmp_path) -> None:
    assert first(tmp_path, LOG) == "verl"
    assert first(tmp_path, RL) == "verl"
    assert certainty(tmp_path, "step:1/90 train_loss:7.1 train_time:90ms\n" * 3, "verl") == 0
