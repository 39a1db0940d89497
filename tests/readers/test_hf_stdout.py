"""Dict rows of HF's Trainer: their steps are in the bars between them, if anywhere."""

from foreshock.core.log import EventKind
from tests.readers.reading import certainty, first, points, read, run_of

PLAIN = """\
{'loss': 2.5, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.1}
{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 2e-05, 'epoch': 0.2}
{'eval_loss': 2.0, 'eval_runtime': 9.5, 'eval_samples_per_second': 3.0, 'epoch': 0.2}
{'loss': inf, 'grad_norm': 0.5, 'learning_rate': 3e-05, 'epoch': 0.3}
{'train_runtime': 99.5, 'train_samples_per_second': 9.0, 'train_loss': 2.25, 'epoch': 0.3}
"""


def row(n: int) -> str:
    return f"{{'loss': '{n}.5', 'grad_norm': '0.5', 'epoch': '0.{n:02}'}}\n"


def bar(n: int, total: int = 90) -> str:
    return f"\r {n}%|█▍       | {n}/{total} [03:15<10:06,  4.59s/it]"


def test_rows_without_bars_have_no_steps(tmp_path) -> None:
    log = read(tmp_path, PLAIN, "hf_stdout")
    (run,) = log.runs
    assert not run.has_steps
    assert points(run, "loss") == [(1, 2.5), (2, 0.0), (3, float("inf"))]
    assert points(run, "grad_norm") == [(1, 1.5), (2, None), (3, 0.5)]
    assert points(run, "eval_loss") == [(2, 2.0)]
    assert set(run.series) == {"loss", "grad_norm", "lr", "epoch", "eval_loss"}
    assert log.facts["train_loss"] == "2.25"


def test_the_bar_redrawn_behind_a_row_tells_its_step(tmp_path) -> None:
    # The bar may lag before the row (fast steps), never behind it.
    text = (
        row(1)
        + bar(11)
        + "\n"
        + "".join(f"{bar(n - 1)}\r      \n{row(n)}{bar(n)}\n" for n in (12, 13, 14))
    )
    run = run_of(tmp_path, text, "hf_stdout")
    assert points(run, "loss") == [(11, 1.5), (12, 12.5), (13, 13.5), (14, 14.5)]
    assert run.total_steps == 90


def test_a_bar_drawn_only_before_the_row_tells_it_too(tmp_path) -> None:
    text = "".join(f"{bar(n - 1)}{bar(n)}\n{row(n)}{bar(n + 1)}\n" for n in (10, 20, 30))
    run = run_of(tmp_path, text, "hf_stdout")
    assert run.series["loss"].steps.tolist() == [10, 20, 30]


def test_bars_of_evaluation_and_loading_do_not_count(tmp_path) -> None:
    text = "\rLoading: 50%|██ | 5/10 [00:01<00:01, 9.5it/s]\n" + "".join(
        f"{bar(n)}\n{row(n)}{bar(n)}\n" for n in (10, 20)
    )
    text += bar(3, 7) + bar(7, 7) + "\n{'eval_loss': '3.0', 'epoch': '0.2'}\n" + bar(20) + "\n"
    text += f"{bar(30)}\n{row(30)}{bar(30)}\n"
    run = run_of(tmp_path, text, "hf_stdout")
    assert run.series["loss"].steps.tolist() == [10, 20, 30]
    assert points(run, "eval_loss") == [(20, 3.0)]


def test_buffered_rows_come_in_heaps_and_have_no_steps(tmp_path) -> None:
    heap = "".join(bar(n) for n in range(60)) + "\n" + "".join(row(n) for n in range(10, 60, 10))
    log = read(tmp_path, heap, "hf_stdout")
    assert not log.runs[0].has_steps
    assert len(log.runs[0].series["loss"]) == 5
    assert log.runs[0].total_steps == 90


def test_steps_go_on_after_the_first_rows_decided(tmp_path) -> None:
    text = "".join(f"{bar(n, 500)}\n{row(n)}{bar(n, 500)}\n" for n in range(1, 201))
    run = run_of(tmp_path, text, "hf_stdout")
    assert run.series["loss"].steps.tolist() == list(range(1, 201))


def test_rows_that_name_their_step(tmp_path) -> None:
    text = (
        "Train:  10%|█ | 9/90 [00:42<41:47, 4.5s/it]{'loss': '2.5', 'grad_norm': '0.5', "
        "'global_step/max_steps': '10/90', 'percentage': '11.11%', 'memory(GiB)': '14.3', "
        "'train_speed(s/it)': '42.5', 'elapsed_time': '43s'}\n"
        "{'loss': 2.25, 'token_acc': 0.5, 'global_step/max_steps': '20/90'}\n"
    )
    run = run_of(tmp_path, text, "hf_stdout")
    assert points(run, "loss") == [(10, 2.5), (20, 2.25)]
    assert run.total_steps == 90
    assert set(run.series) == {"loss", "grad_norm", "token_acc"}


def test_several_on_a_line_wrapped_ones_and_printed_arrays(tmp_path) -> None:
    text = (
        "{'loss': 2.5, 'epoch': 0.1}{'loss': np.float64(2.25), 'epoch': 0.2}\n"
        "{'loss': 2.0,\n 'grad_norm': 1.\n5, 'epoch': 0.3}\n"
        "{'loss': tensor(1.75, device='cuda:0'), 'epoch': 0.4}\n"
    )
    run = run_of(tmp_path, text, "hf_stdout")
    assert points(run, "loss") == [(1, 2.5), (2, 2.25), (3, 2.0), (4, 1.75)]
    assert points(run, "grad_norm") == [(3, 1.5)]


def test_a_row_cut_off_keeps_its_whole_pairs(tmp_path) -> None:
    run = run_of(tmp_path, row(1) + "{'loss': 2.25, 'grad_norm': 1.", "hf_stdout")
    assert points(run, "loss") == [(1, 1.5), (2, 2.25)]
    assert points(run, "grad_norm") == [(1, 0.5)]


def test_other_dicts_are_no_rows(tmp_path) -> None:
    text = (
        "Updated tokens: {'eos_token_id': 128009, 'pad_token_id': 128009}.\n"
        "test_stats {'50': '0.39', '100': '0.47'}\n{'bbox_loss_coef': 5, 'lr': 0.1}\n"
    )
    assert certainty(tmp_path, text, "hf_stdout") == 0
    assert len(run_of(tmp_path, text + PLAIN, "hf_stdout").series["loss"]) == 3


def test_runs_one_after_the_other_and_resumed_ones(tmp_path) -> None:
    log = read(tmp_path, PLAIN + PLAIN, "hf_stdout")
    assert [len(run.series["loss"]) for run in log.runs] == [3, 3]
    rows = "".join(f"{bar(n)}\n{row(n)}{bar(n)}\n" for n in (10, 20, 30))
    again = "***** Running training *****\n  Continuing training from global step 15\n"
    run = run_of(tmp_path, rows + again + rows[rows.index("\r 20%") :], "hf_stdout")
    assert [one.kind for one in run.events] == [EventKind.RESUMED]
    assert run.restarts == ((30, 20),)


def test_a_second_run_of_another_length_has_its_own_bar(tmp_path) -> None:
    one = "".join(f"{bar(n)}\n{row(n)}{bar(n)}\n" for n in (10, 20, 30))
    two = "".join(f"{bar(n, 70)}\n{row(n)}{bar(n, 70)}\n" for n in (5, 10))
    log = read(tmp_path, one + "***** Running training *****\n" + two, "hf_stdout")
    assert [run.series["loss"].steps.tolist() for run in log.runs] == [[10, 20, 30], [5, 10]]


def test_rows_repeated_by_a_logger_count_once(tmp_path) -> None:
    prefix = "[INFO|2024-05-02] logging.py:143 >> "
    text = "".join(prefix + row(n) + row(n) for n in (1, 2))
    assert points(run_of(tmp_path, text, "hf_stdout"), "loss") == [(1, 1.5), (2, 2.5)]


def test_overflows_keep_their_place_between_held_rows(tmp_path) -> None:
    said = (
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32.0\n"
    )
    text = "".join(f"{bar(n)}\n{row(n)}{bar(n)}\n{said}" for n in (10, 20))
    run = run_of(tmp_path, text, "hf_stdout")
    assert [(one.kind, one.step) for one in run.events] == [
        (EventKind.OVERFLOW, 10),
        (EventKind.OVERFLOW, 20),
    ]
    assert run.series["loss_scale"].values.tolist() == [64, 32, 64, 32]


def test_ranks_that_print_alike_count_once(tmp_path) -> None:
    text = "".join(f"[rank{r}]: {row(n)}" for n in (1, 2, 3) for r in (0, 1))
    run = run_of(tmp_path, text, "hf_stdout")
    assert points(run, "loss") == [(1, 1.5), (2, 2.5), (3, 3.5)]


def test_is_recognised_and_json_lines_are_not(tmp_path) -> None:
    assert first(tmp_path, PLAIN) == "hf_stdout"
    mixed = "Loading\n" + '{"loss": 2.5, "epoch": 0.1}\n' * 2
    assert certainty(tmp_path, mixed, "hf_stdout") == 0.4
    assert certainty(tmp_path, mixed[8:], "hf_stdout") == 0


def test_of_a_row_and_its_echo_the_one_that_says_more_is_read(tmp_path) -> None:
    logged = "05/17/2024 08:00:{0:02} - INFO - a.callbacks - {{'loss': {1:.4f}, 'epoch': {2}}}"
    plain = "{{'loss': {1:.1f}, 'grad_norm': {3}, 'epoch': {2}}}"
    values = [(1.3, 0.01, 0.5), (1.2, 0.02, 0.4), (0.0, 0.03, "nan")]
    text = "".join(
        f"{style.format(n, *row)}\n" for n, row in enumerate(values) for style in (logged, plain)
    )
    run = run_of(tmp_path, text, "hf_stdout")
    assert points(run, "loss") == [(1, 1.3), (2, 1.2), (3, 0.0)]
    assert points(run, "grad_norm") == [(1, 0.5), (2, 0.4), (3, None)]


def test_rows_that_only_a_logger_prints_are_read(tmp_path) -> None:
    lines = [f"05/17/2024 08:00:00 - INFO - __main__ -   {row(n)}" for n in (1, 2, 3)]
    run = run_of(tmp_path, "".join(lines), "hf_stdout")
    assert points(run, "loss") == [(1, 1.5), (2, 2.5), (3, 3.5)]
    run = run_of(tmp_path, "".join(f"{bar(10 * n)}\n{line}" for n, line in enumerate(lines, 1)),
                 "hf_stdout")  # fmt: skip
    assert [step for step, _ in points(run, "loss")] == [10, 20, 30]


def test_steps_of_buffered_rows_follow_from_their_epochs_once_the_run_is_over(tmp_path) -> None:
    bars = "".join(f"{bar(n, 40)}" for n in range(41))
    rows = [f"{{'loss': {9 - n}.5, 'epoch': {n * 0.25}}}\n" for n in range(1, 9)]
    rows.insert(4, "{'eval_loss': 7.5, 'epoch': 1.0}\n")
    over = "{'train_runtime': 9.5, 'train_loss': 4.0, 'epoch': 2.0}\n"
    run = run_of(tmp_path, f"{bars}\n{''.join(rows)}{over}", "hf_stdout")
    assert [step for step, _ in points(run, "loss")] == [5, 10, 15, 20, 25, 30, 35, 40]
    assert points(run, "eval_loss") == [(20, 7.5)]
    assert run.has_steps
    assert not run_of(tmp_path, f"{bars}\n{''.join(rows)}", "hf_stdout").has_steps
