# ruff: noqa: E501 - lines of logs are as long as they are
"""Megatron's records: a missing loss is a NaN, except where it is not."""

import pytest

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, read, run_of


def record(step: int, middle: str, *, skipped: int = 0, nans: int = 0) -> str:
    return (
        f" iteration {step:8d}/     900 | consumed samples: {step * 8:12d} | elapsed time per "
        f"iteration (ms): 61.5 | learning rate: 1.000E-05 | global batch size:     8 | {middle}"
        f"number of skipped iterations: {skipped:3d} | number of nan iterations: {nans:3d} |\n"
    )


def healthy(step: int, loss: str, norm: str = "0.500", **counts: int) -> str:
    return record(
        step,
        f"lm loss: {loss} | loss scale: 64.0 | grad norm: {norm} | num zeros: 0.0 | ",
        **counts,
    )


def test_records_without_what_they_cost(tmp_path) -> None:
    run = run_of(
        tmp_path, healthy(10, "2.500000E+00") + healthy(20, "2.250000E+01", "inf"), "megatron"
    )
    assert points(run, "loss") == [(10, 2.5), (20, 22.5)]
    assert points(run, "grad_norm") == [(10, 0.5), (20, float("inf"))]
    assert points(run, "lr") == [(10, 1e-5), (20, 1e-5)]
    assert points(run, "loss_scale") == [(10, 64.0), (20, 64.0)]
    assert set(run.series) == {
        "loss", "grad_norm", "lr", "loss_scale", "global_batch_size", "num_zeros", "num_skipped",
        "num_nan",
    }  # fmt: skip
    assert run.total_steps == 900


def test_a_record_without_its_loss_had_a_nan(tmp_path) -> None:
    text = healthy(1, "2.5E+00") + record(2, "loss scale: 64.0 | grad norm: 0.500 | ")
    log = read(tmp_path, text + healthy(3, "2.25E+00"), "megatron")
    assert points(log.runs[0], "loss") == [(1, 2.5), (2, None), (3, 2.25)]
    assert any("without 'lm loss'" in note for note in log.notes)
    assert not any("perhaps" in note for note in log.notes)


def test_a_loss_that_is_never_shown_is_weaker_evidence(tmp_path) -> None:
    text = record(1, "loss scale: 1.0 | ") + record(2, "loss scale: 1.0 | ")
    log = read(tmp_path, text, "megatron")
    assert points(log.runs[0], "loss") == [(1, None), (2, None)]
    assert any("perhaps it is not logged" in note for note in log.notes)


def test_a_skipped_step_has_no_loss_and_no_nan(tmp_path) -> None:
    # The search for a loss scale at the start; the newest version prints a loss of 0 for it.
    text = (
        record(1, "loss scale: 4096.0 | ", skipped=1)
        + healthy(2, "0.000000E+00", skipped=1)
        + healthy(3, "2.5E+00")
        + record(4, "loss scale: 64.0 | ", skipped=1, nans=1)
    )
    run = run_of(tmp_path, text, "megatron")
    assert points(run, "loss") == [(3, 2.5), (4, None)]
    assert [(event.kind, event.step) for event in run.events] == [
        (EventKind.SKIPPED, 1),
        (EventKind.SKIPPED, 2),
        (EventKind.SKIPPED, 4),
    ]


def test_some_skipped_of_many_do_not_explain_a_missing_loss(tmp_path) -> None:
    text = healthy(10, "2.5E+00") + record(20, "loss scale: 64.0 | ", skipped=3)
    assert points(run_of(tmp_path, text, "megatron"), "loss") == [(10, 2.5), (20, None)]


def test_a_loss_of_zero_with_no_step_skipped_is_one(tmp_path) -> None:
    text = healthy(1, "2.5E+00") + healthy(2, "0.000000E+00")
    assert points(run_of(tmp_path, text, "megatron"), "loss") == [(1, 2.5), (2, 0.0)]


@pytest.mark.parametrize("end", ["lm loss: 1.", "lm l", "lm loss: 2.1E", "learning rate: 1.0"])
def test_a_last_line_cut_before_or_in_its_loss_tells_nothing(tmp_path, end) -> None:
    text = healthy(1, "2.5E+00") + " iteration        2/     900 | global batch size:  8 | " + end
    assert points(run_of(tmp_path, text, "megatron"), "loss") == [(1, 2.5)]


def test_a_last_line_cut_behind_the_place_of_its_loss_tells_that_it_is_missing(tmp_path) -> None:
    text = healthy(1, "2.5E+00") + " iteration        2/     900 | loss scale: 64.0 | gra"
    assert points(run_of(tmp_path, text, "megatron"), "loss") == [(1, 2.5), (2, None)]


def test_old_syntax_without_colons(tmp_path) -> None:
    line = (
        " iteration {:8d}/    3000 | elapsed time per iteration (ms): 129.0 | learning rate "
        "6.300E-06 | lm loss {} | loss scale {} |\n"
    )
    text = line.format(100, "5.5E+00", "8.0") + line.format(200, "NAN", "0.1")
    text += " validation loss at iteration 200 | LM loss: 4.25E+00 | LM PPL: 7.01E+01\n"
    run = run_of(tmp_path, text, "megatron")
    assert points(run, "loss") == [(100, 5.5), (200, None)]
    assert points(run, "loss_scale") == [(100, 8.0), (200, 0.1)]
    assert points(run, "eval_loss") == [(200, 4.25)]


def test_gpt_neox(tmp_path) -> None:
    line = (
        "samples/sec: 27.15 | iteration {:8d}/  320000 | elapsed time per iteration (ms): 118.5 | "
        "learning rate: 1.875E-06 | approx flops per GPU: 44.8TFLOPS | lm_loss: {} | loss scale: "
        "65536.0 | number of skipped iterations: {:3d} | number of nan iterations:   0 |\n"
    )
    text = (
        line.format(10, "0.000000E+00", 10)
        + line.format(20, "9.5E+00", 2)
        + line.format(30, "nan", 0)
        + "-" * 40
        + "\n validation results at iteration 30 | lm_loss value: 8.5E+00 | lm_loss_ppl value: "
        "4.9E+03 |\n"
    )
    run = run_of(tmp_path, text, "megatron")
    assert points(run, "loss") == [(20, 9.5), (30, None)]
    assert points(run, "eval_loss") == [(30, 8.5)]
    assert "eval_lm_loss_ppl" not in run.series


def test_validation_and_test(tmp_path) -> None:
    text = (
        healthy(10, "2.5E+00")
        + " validation loss at iteration 10 | lm loss value: 2.75E+00 | lm loss PPL: 1.5E+01 | \n"
        + healthy(20, "2.25E+00")
        + " validation loss at iteration 20 on validation set | lm loss value: 2.5E+00 | \n"
        + " validation loss at iteration 20 on test set | lm loss value: 9.5E+00 | \n"
    )
    run = run_of(tmp_path, text, "megatron")
    assert points(run, "eval_loss") == [(10, 2.75), (20, 2.5)]
    assert points(run, "loss") == [(10, 2.5), (20, 2.25)]


def test_records_wrapped_by_a_terminal(tmp_path) -> None:
    text = "".join(
        f"[default7]: iteration {step:8d}/ 900 | consumed samples: 80 | learning\n"
        f" rate: 1.000E-05 | lm loss: {step}.5E+00 | grad norm: 0.5 | number of nan\n"
        "iterations:   0 | TFLOPs: 149.10 |\n"
        for step in (1, 2, 3)
    )
    run = run_of(tmp_path, text, "megatron")
    assert points(run, "loss") == [(1, 1.5), (2, 2.5), (3, 3.5)]
    assert points(run, "lr") == [(1, 1e-5), (2, 1e-5), (3, 1e-5)]
    assert points(run, "num_nan") == [(1, 0.0), (2, 0.0), (3, 0.0)]


def test_what_follows_a_record_is_not_taken_for_a_part_of_it(tmp_path) -> None:
    text = (
        healthy(1, "2.5E+00") + "time (ms) | forward: 3500.1 | backward: 7000.2 | lm loss: 9.0 |\n"
    )
    text += "[Rank 0] (after 1 iterations) memory (MB) | allocated: 9.5 | reserved: 9.9 |\n"
    run = run_of(tmp_path, text + healthy(2, "2.25E+00"), "megatron")
    assert points(run, "loss") == [(1, 2.5), (2, 2.25)]
    assert "forward" not in run.series


def test_times_behind_an_old_record_are_no_part_of_it(tmp_path) -> None:
    text = "".join(
        f" iteration {step}/ 30 | lm loss {step}.5E+00 | loss scale 8.0 |\n"
        "time (ms) | forward: 350.25 | backward: 700.5 | batch generator: 1.5 |\n"
        for step in (1, 2, 3)
    )
    run = run_of(tmp_path, text, "megatron")
    assert points(run, "loss") == [(1, 1.5), (2, 2.5), (3, 3.5)]
    assert set(run.series) == {"loss", "loss_scale"}


def test_skipped_steps_of_an_interval_are_told_whatever_came_before(tmp_path) -> None:
    text = "".join(healthy(10 * n, f"{n}.5E+00", skipped=2 * (n == 4)) for n in range(1, 6))
    run = run_of(tmp_path, text, "megatron")
    assert [(event.kind, event.step) for event in run.events] == [(EventKind.SKIPPED, 40)]
    assert len(run.series["loss"]) == 5


def test_the_norm_of_a_warning_belongs_to_the_record_behind_it(tmp_path) -> None:
    text = (
        healthy(1, "2.5E+00")
        + "***WARNING*** Bad grad_norm detected (grad_norm=nan)\n"
        + record(2, "loss scale: 1.0 | ", skipped=1)
        + healthy(3, "2.25E+00", "0.250")
    )
    run = run_of(tmp_path, text, "megatron")
    assert points(run, "grad_norm") == [(1, 0.5), (2, None), (3, 0.25)]
    assert points(run, "loss") == [(1, 2.5), (3, 2.25)]
    assert (EventKind.NONFINITE, "grad_norm", 2) in [(e.kind, e.signal, e.step) for e in run.events]


def test_several_records_on_a_line_and_ranks_that_all_print(tmp_path) -> None:
    one = healthy(1, "2.5E+00").strip() + " " + healthy(2, "2.25E+00")
    assert points(run_of(tmp_path, one, "megatron"), "loss") == [(1, 2.5), (2, 2.25)]
    ranks = "".join(
        f"[{rank}]: {healthy(step, f'{step + rank}.5E+00')}"
        for step in (1, 2, 3)
        for rank in (0, 1)
    )
    assert points(run_of(tmp_path, ranks, "megatron"), "loss") == [(1, 1.5), (2, 2.5), (3, 3.5)]


def test_overflow_lines_beside_a_column_of_loss_scales(tmp_path) -> None:
    text = healthy(1, "2.5E+00") + (
        "[2024-05-01 09:30:00,100] [INFO] [stage_1_and_2.py:1644:step] [deepscale] OVERFLOW! Rank 0 "
        "Skipping step. Attempted loss scale: 64.0, reducing to 32.0\n"
    )
    run = run_of(tmp_path, text + healthy(2, "2.25E+00"), "megatron")
    assert points(run, "loss_scale") == [(1, 64.0), (2, 64.0)]
    assert [event.kind for event in run.events] == [EventKind.OVERFLOW]


def test_recognition(tmp_path) -> None:
    assert first(tmp_path, healthy(1, "2.5E+00") * 3) == "megatron"
    assert certainty(tmp_path, "iteration: 5 loss: 2.5\niteration 5/10 loss 2.5\n", "megatron") == 0
